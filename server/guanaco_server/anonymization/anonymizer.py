"""Replaces personal data in texts by tags: <EMAIL>, <PHONE>, <PASSWORD> and so on; spans.Tag lists them.

phonenumbers (libphonenumber) recognizes phone numbers, and python-stdnum the check digits of cards and documents
(docs/decisions/0012-anonymization-by-number-plans-and-check-digits.md). docs/privacy.md says what is
not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from guanaco_server.anonymization import (
    addresses,
    emails,
    names,
    numbers,
    passwords,
    places,
    spelled,
    vehicles,
)
from guanaco_server.anonymization.spans import Span, fold, merged

VERSION = 4
"""Raise it with every change of the resulting texts: every copy is then made again."""

DIGIT = re.compile(r"\d")
DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "AU", "JP")


class Anonymizer:
    """``regions`` are the countries whose phone numbers are recognized without a country code."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)

    def text(self, text: str, user_name: str = "") -> str:
        """Replace personal data by tags. Every other character stays as it was."""
        spans = self.find(text, user_name)
        return _replaced(text, spans) if spans else text

    def find(self, text: str, user_name: str = "") -> list[Span]:
        """Return the places of personal data, in order; none overlaps another."""
        folded = fold(text)
        spans = [span.of(folded) for span in self._find(folded.text, user_name)]
        return merged(spans) if spans else spans

    def _find(self, text: str, user_name: str) -> Iterable[Span]:
        lower = text.lower()
        has_digit = DIGIT.search(text) is not None
        yield from emails.find(text, lower)
        longest_word = max(map(len, text.split())) if has_digit else 0
        yield from addresses.find(text, longest_word)
        yield from names.find_handles(text, lower, has_digit)
        yield from passwords.find(text, lower)
        yield from spelled.find_in_words(text, lower)
        if has_digit:
            yield from numbers.find(text, self._regions)
            yield from places.find(text, lower)
            yield from vehicles.find(text, lower, longest_word)
            yield from spelled.find_lookalikes(text, self._is_phone)
        yield from names.find_user_name(text, user_name)

    def _is_phone(self, run: str, digits: str) -> bool:
        return numbers.is_phone(run, digits, self._regions)


def _replaced(text: str, spans: Sequence[Span]) -> str:
    pieces: list[str] = []
    end = 0
    for span in spans:
        pieces += (text[end : span.start], f"<{span.tag}>")
        end = span.end
    return "".join((*pieces, text[end:]))
