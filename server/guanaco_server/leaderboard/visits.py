"""Whether a user came back to a submission on the next day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guanaco_server.leaderboard.tally import Tally


@dataclass(frozen=True)
class Visit:
    """One user with one submission: the first day (UTC, an ordinal) on which she wrote to it."""

    first_day: int
    has_returned: bool

    def tally(self) -> Tally:
        counts = {f"came:{self.first_day}": 1}
        return Tally(counts | ({f"returned:{self.first_day}": 1} if self.has_returned else {}))


def visit_of(days: Iterable[int]) -> Visit | None:
    """From the days of all her conversations with it; the two first of each suffice."""
    found = set(days)
    if not found:
        return None
    first = min(found)
    return Visit(first, first + 1 in found)
