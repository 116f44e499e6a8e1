"""Replaces personal data in texts by tags: <EMAIL>, <LINK>, <CARD>, <DOCUMENT>, <IP>, <PHONE>, <HANDLE>, <NUMBER>, <USER>.

phonenumbers (libphonenumber) recognizes phone numbers, and python-stdnum the check digits of cards and documents
(docs/decisions/0012-anonymization-by-number-plans-and-check-digits.md). docs/privacy.md says what is
not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from guanaco_server.anonymization import addresses, names, numbers
from guanaco_server.anonymization.spans import Span, fold, merged

VERSION = 2
"""Raise it with every change of the resulting texts: every copy is then made again."""

DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "BR", "AU", "JP")


class Anonymizer:
    """``regions`` are the countries whose phone numbers are recognized without a country code."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)

    def text(self, text: str, user_name: str = "") -> str:
        """Replace personal data by tags. Every other character stays as it was."""
        folded = fold(text)
        spans = [folded_span.of(folded) for folded_span in self._find(folded.text, user_name)]
        return _replaced(text, merged(spans)) if spans else text

    def _find(self, text: str, user_name: str) -> Iterable[Span]:
        lower = text.lower()
        yield from addresses.find(text, lower)
        yield from names.find_handles(text, lower)
        yield from numbers.find(text, self._regions)
        yield from names.find_user_name(text, user_name)


def _replaced(text: str, spans: Sequence[Span]) -> str:
    pieces: list[str] = []
    end = 0
    for span in spans:
        pieces += (text[end : span.start], f"<{span.tag}>")
        end = span.end
    return "".join((*pieces, text[end:]))
