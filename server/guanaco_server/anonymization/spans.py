"""The places of personal data in a text, and the folded text in which detectors look for them.

Folding turns full-width and other fancy digits, zero-width characters, soft hyphens and keycaps into plain letters,
digits and dashes: people use them to hide a number from a filter so that other people can still read it. Each place
in the folded text has its place in the original.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache


class Tag(IntEnum):
    """The kinds of personal data. Where finds overlap, the first kind in this list names the whole."""

    EMAIL = 0
    LINK = 1
    PASSWORD = 2
    WALLET = 3
    CARD = 4
    DOCUMENT = 5
    VEHICLE = 6
    PLACE = 7
    IP = 8
    MAC = 9
    PHONE = 10
    HANDLE = 11
    NUMBER = 12
    USER = 13

    def __format__(self, spec: str) -> str:
        return self.name


@dataclass(frozen=True)
class Span:
    start: int
    end: int
    tag: Tag

    def of(self, folded: Folded) -> Span:
        """Return the same place in the original text."""
        start, end = folded.original(self.start, self.end)
        return Span(start, end, self.tag)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sort the finds and join those that overlap, so that everything found by any detector is replaced."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if found and span.start < found[-1].end:
            last = found.pop()
            span = Span(last.start, max(last.end, span.end), min(last.tag, span.tag))
        found.append(span)
    return found


OMITTED = frozenset({"Cf", "Me"})  # zero-width and soft hyphens; the keycap around a digit
VARIATION_SELECTORS = range(0xFE00, 0xFE10)


@dataclass(frozen=True)
class Folded:
    """A folded text. ``origins`` has each character's place in the original, and the end's; None if nothing changed."""

    text: str
    origins: Sequence[int] | None = None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return the slice of the original that a slice came from, with the marks omitted after it."""
        if self.origins is None:
            return start, end
        return self.origins[start], self.origins[end]


def fold(text: str) -> Folded:
    if text.isascii():
        return Folded(text)
    characters: list[str] = []
    origins: list[int] = []
    for index, character in enumerate(text):
        plain = _plain(character)
        characters.append(plain)
        origins.extend([index] * len(plain))
    return Folded("".join(characters), [*origins, len(text)])


@lru_cache(maxsize=4_096)
def _plain(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category in OMITTED or ord(character) in VARIATION_SELECTORS:
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Pd":
        return "-"
    return unicodedata.normalize("NFKC", character).replace("\N{IDEOGRAPHIC FULL STOP}", ".")
