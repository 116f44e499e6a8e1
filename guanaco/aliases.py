"""Aliases and tags: names that a developer gives to their own submissions.

``org/model@champion`` is the submission of the repo ``org/model`` that its developer calls ``champion`` now. It can stand
wherever a submission's id can.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from guanaco.forms import REPO, SLUG, Slug

MAX_TAGS = MAX_ALIASES = 16  # of a submission
ALIAS = re.compile(f"{REPO}@{SLUG}")

Tags = Annotated[list[Slug], Field(max_length=MAX_TAGS)]


class AliasName(NamedTuple):
    """``repo@name``."""

    repo: str
    name: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.name}"


def read_alias(text: str) -> AliasName | None:
    """Read ``org/model@champion``; None for anything else, such as a submission's id."""
    repo, _, name = text.partition("@")
    return AliasName(repo, name) if ALIAS.fullmatch(text) else None


class Alias(BaseModel):
    """An alias: the submission that it names, and since when."""

    alias: str
    submission_id: str
    developer: str
    set_at: datetime


class TagChanges(BaseModel):
    """The tags that a submission has from now on."""

    model_config = ConfigDict(extra="forbid")

    tags: Tags
