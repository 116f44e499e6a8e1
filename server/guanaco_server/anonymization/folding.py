"""Text as the detectors see it: plain letters, digits and dashes, with a way back to the original.

Full-width and other fancy digits, zero-width characters, soft hyphens and keycaps are how a number is hidden from a
filter and still read by people.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

OMITTED = frozenset({"Cf", "Me"})  # zero-width and soft hyphens; the keycap around a digit
VARIATION_SELECTORS = range(0xFE00, 0xFE10)


@dataclass(frozen=True)
class Folded:
    """``origins`` holds for each character, and for the end, its place in the original; None when they are the same."""

    text: str
    origins: Sequence[int] | None = None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The slice of the original that a slice of the text came from, with the marks that were omitted after it."""
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
