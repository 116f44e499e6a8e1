"""The newest entry until it has its ratings, then the next newest; once all have theirs, the one with the fewest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from guanaco_server.routing.policy import Entry


class NewestFirst:
    """A weight of 2 means twice the ratings before the turn goes on."""

    def __init__(self, entries: Sequence[Entry], until: int) -> None:
        """``entries`` are newest first."""
        waiting = [entry for entry in entries if entry.ratings < until * entry.weight]
        rated = [entry for entry in entries if entry.ratings >= until * entry.weight]
        rated.sort(key=lambda entry: entry.ratings / entry.weight)
        self._order = tuple(entry.id for entry in (*waiting, *rated))

    def choose(self, draws: Iterator[float], barred: Set[str]) -> str | None:
        """Chance has no part in it."""
        for name in self._order:
            if name not in barred:
                return name
        return None
