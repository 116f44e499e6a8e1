"""Measures what two replies differ by in style, and not in words: length, markdown, and the side that each was on.

A difference is (a - b) / (a + b), so that it lies between -1 and 1 and does not grow with long replies; 0 where both have none.
W.-L. Chiang and others, "Chatbot Arena" (2024), and its notes on style control measure the same three things.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TERMS = ("length", "markdown", "position")
NO_STYLE: tuple[float, ...] = ()

# A heading, an item of a list, or a fence at the beginning of a line; words in bold.
BLOCKS = re.compile(r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,9}[.)] |```)", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")


@dataclass(frozen=True, slots=True)
class Style:
    characters: int
    marks: int


def style_of(text: str) -> Style:
    """Measure a reply: its characters, and its marks of markdown."""
    marks = sum(1 for _ in BLOCKS.finditer(text)) + sum(1 for _ in BOLD.finditer(text))
    return Style(len(text), marks)


def differences(a: Style, b: Style) -> tuple[float, ...]:
    """Return a duel's value of each of TERMS; side a was the one shown first, in every duel."""
    return _relative(a.characters, b.characters), _relative(a.marks, b.marks), 1.0


def _relative(a: int, b: int) -> float:
    return (a - b) / (a + b) if a + b else 0.0
