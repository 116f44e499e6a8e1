"""Reads docs/runbooks.md for its page: headings, paragraphs, and the little that is marked in them.

The wheel holds a copy beside this module, a checkout has the file itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from guanaco_server.web.words import prose

PACKAGED = Path(__file__).parent / "runbooks.md"
CHECKOUT = Path(__file__).parents[3] / "docs" / "runbooks.md"
PATH = "/docs/runbooks"

LINK = re.compile(r"\[([^]]+)\]\(([^)]*)\)")
EMPHASIS = re.compile(r"\*([^*]+)\*")


@dataclass(frozen=True)
class Runbook:
    """The instructions for one alert."""

    name: str
    paragraphs: tuple[Markup, ...]


@dataclass(frozen=True)
class RunbookPart:
    title: str
    runbooks: tuple[Runbook, ...]


def read_runbooks() -> tuple[RunbookPart, ...]:
    text = (PACKAGED if PACKAGED.exists() else CHECKOUT).read_text()
    return tuple(_part(part) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])


def _part(text: str) -> RunbookPart:
    head, *runbooks = re.split(r"^### ", text, flags=re.MULTILINE)
    return RunbookPart(head.partition("\n")[0], tuple(_runbook(one) for one in runbooks))


def _runbook(text: str) -> Runbook:
    name, _, rest = text.partition("\n")
    return Runbook(name.strip(), tuple(_html(one) for one in rest.strip().split("\n\n")))


def _html(paragraph: str) -> Markup:
    """Set code and emphasis. Only the text of a link stays: not every document has a page."""
    names_only = LINK.sub(lambda found: found[1], paragraph)
    return Markup(EMPHASIS.sub(r"<em>\1</em>", str(prose(names_only))))  # noqa: S704 - prose escapes
