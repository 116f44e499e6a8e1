"""Entries drawn in proportion to their shares."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from itertools import accumulate, islice

TRIES = 8  # before what is left is counted out; with half of the shares barred 1 choice in 256 comes to that


class Shares:
    """A draw that hits a barred entry is thrown away, which leaves the others' proportions as they are."""

    def __init__(self, ids: Sequence[str], shares: Sequence[float]) -> None:
        """``shares`` are over 0, and need not add up to 1."""
        self._ids = tuple(ids)
        self._shares = tuple(shares)
        self._bounds = list(accumulate(shares))

    def choose(self, draws: Iterator[float], barred: Set[str]) -> str | None:
        if not self._ids:
            return None
        for draw in islice(draws, TRIES):
            chosen = _at(self._ids, self._bounds, draw)
            if chosen not in barred:
                return chosen
        return self._choose_of_the_rest(next(draws), barred)

    def _choose_of_the_rest(self, draw: float, barred: Set[str]) -> str | None:
        rest = [
            (name, share)
            for name, share in zip(self._ids, self._shares, strict=True)
            if name not in barred
        ]
        if not rest:
            return None
        return _at([name for name, _ in rest], list(accumulate(share for _, share in rest)), draw)


def _at(ids: Sequence[str], bounds: list[float], draw: float) -> str:
    place = bisect_right(bounds, draw * bounds[-1])
    return ids[min(place, len(ids) - 1)]  # the last one's, where rounding went over the end
