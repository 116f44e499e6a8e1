"""Models of stored prompts: versions that never change, and labels that name one version and can be moved.

``support@3`` is the third version of the prompt ``support``; ``support@production`` the version that its label names now. A submission that
names a label is given another prompt when the label moves, without a redeploy.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from guanaco.forms import SLUG, OneLine, Slug
from guanaco.prompts import Prompt

REFERENCE = re.compile(f"({SLUG})@({SLUG})")

PromptReferenceText = Annotated[str, StringConstraints(max_length=129)]
"""``name@3`` or ``name@label``; anything else names no stored prompt."""


class PromptReference(NamedTuple):
    """A version, or a label, of a stored prompt."""

    name: str
    version: int | None
    label: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.label if self.version is None else self.version}"


def read_reference(text: str) -> PromptReference | None:
    """Read ``name@3`` or ``name@label``.

    Args:
        text: What may be a reference.

    Returns:
        The reference; None for anything else, such as a preset's name or a file's path.
    """
    match = REFERENCE.fullmatch(text)
    if match is None or len(match[2]) > 64:
        return None
    if match[2].isdigit():
        return PromptReference(match[1], int(match[2]), None) if len(match[2]) < 10 else None
    return PromptReference(match[1], None, match[2])


class PromptPush(BaseModel):
    """A new version; the first one makes the prompt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    prompt: Prompt
    note: OneLine | None = Field(default=None, description="The change, for readers of the list.")


class LabelMove(BaseModel):
    """The version that the label names from now on; without one, that which it named before the last move."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int | None = Field(default=None, ge=1, lt=2**31)


class PromptLabel(BaseModel):
    """A label, and what it named before."""

    label: str
    version: int
    previous: int | None = None
    moved_at: datetime
    moved_by: str
    submissions: list[str] = Field(
        default=[], description="The submissions that follow it, and so have its version now."
    )


class PromptVersionSummary(BaseModel):
    version: int
    note: str | None = None
    created_at: datetime
    created_by: str


class StoredPrompt(BaseModel):
    """A stored prompt: its labels, and its versions, newest first."""

    name: str
    developer: str
    newest: int
    created_at: datetime
    updated_at: datetime
    labels: list[PromptLabel] = []
    versions: list[PromptVersionSummary] = Field(
        default=[], description="The newest 100; lists of prompts leave them out."
    )


class PromptVersion(PromptVersionSummary):
    """One version with its content."""

    name: str
    developer: str
    labels: list[str] = Field(default=[], description="The labels that name it now.")
    prompt: Prompt
