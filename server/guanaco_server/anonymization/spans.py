"""Where personal data is in a text, and what kind of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from guanaco_server.anonymization.folding import Folded


class Tag(IntEnum):
    """Of overlapping finds the first one here gives its name to all that they cover."""

    EMAIL = 0
    LINK = 1
    CARD = 2
    DOCUMENT = 3
    IP = 4
    PHONE = 5
    HANDLE = 6
    NUMBER = 7
    USER = 8

    def __format__(self, spec: str) -> str:
        return self.name


@dataclass(frozen=True)
class Span:
    start: int
    end: int
    tag: Tag

    def of(self, folded: Folded) -> Span:
        """The same in the original text."""
        start, end = folded.original(self.start, self.end)
        return Span(start, end, self.tag)


def merged(spans: Iterable[Span]) -> list[Span]:
    """In the order of the text; what overlaps becomes one, so that nothing found by anybody stays."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if found and span.start < found[-1].end:
            last = found.pop()
            span = Span(last.start, max(last.end, span.end), min(last.tag, span.tag))
        found.append(span)
    return found
