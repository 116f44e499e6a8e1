"""Assignment policies: each is made from one snapshot of a competition's entries, and chooses one for each draw.

    NewestFirst   the newest entry until it has its ratings, then the next newest; then the one with the fewest
    uniform       every entry in proportion to its weight
    adaptive      top-two Thompson sampling: conversations go where they change who is first
    decide        conversations go where they show that one is within a margin of the best (deciding.py)

Top-two Thompson sampling (D. Russo, "Simple Bayesian Algorithms for Best-Arm Identification", COLT 2016) draws a ratio for
each entry from its posterior and takes the best entry I; with probability 1 - β it draws again until another entry is
best, and takes that one. With p the probabilities of being the best (posterior.py), entry i is taken with probability

    p_i (β + (1 - β) Σ_{j≠i} p_j / (1 - p_j))

which is computed once a snapshot, so that a choice is one draw from a table.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from itertools import accumulate, islice
from typing import NamedTuple, Protocol

from guanaco_server.routing.policies.posterior import Posterior


class Entry(NamedTuple):
    """A submission that takes conversations of a competition; ``created_at`` in seconds, ``weight`` over 0."""

    id: str
    created_at: float
    up: int
    down: int
    weight: float

    @property
    def ratings(self) -> int:
        return self.up + self.down


class AssignmentPolicy(Protocol):
    """Chooses in microseconds: what takes longer is done when it is made."""

    def choose(self, draws: Iterator[float], barred: Set[str]) -> str | None:
        """Return an entry that is not barred, the same for the same draws; None when all are."""
        ...

    def chances(self, barred: Set[str]) -> dict[str, float]:
        """Return the exact chance of each entry that is not barred to be chosen, over all draws."""
        ...


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

    def chances(self, barred: Set[str]) -> dict[str, float]:
        """Return each share of what is not barred: a draw that is thrown away leaves the proportions as they are."""
        left = {
            name: share
            for name, share in zip(self._ids, self._shares, strict=True)
            if name not in barred
        }
        total = math.fsum(left.values())
        return {name: share / total for name, share in left.items()}

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


def uniform(entries: Sequence[Entry]) -> Shares:
    return Shares([entry.id for entry in entries], [entry.weight for entry in entries])


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

    def chances(self, barred: Set[str]) -> dict[str, float]:
        """Return 1 for the one that is chosen, and 0 for the others."""
        chosen = next((name for name in self._order if name not in barred), None)
        return {name: float(name == chosen) for name in self._order if name not in barred}


BETA = 0.5  # Russo's choice where the best one for the problem is not known
LEAST_DOUBT = 1e-18  # that the first one is the best, below which there is none
LEAST_SHARE = 1e-9  # so that a hopeless entry is still there when all others are barred


async def adaptive(
    entries: Sequence[Entry], posterior: Posterior, recency_floor: float, new_until: int
) -> Shares:
    """``recency_floor`` is the share that goes to entries with fewer than ``new_until`` ratings, as long as there are any."""
    chances = await posterior.best_probabilities([(entry.up, entry.down) for entry in entries])
    weights = [entry.weight for entry in entries]
    leading = weighted(top_two(chances), weights)
    new = [float(entry.ratings < new_until) for entry in entries]
    if any(new):
        kept = weighted(new, weights)
        leading = [
            (1 - recency_floor) * one + recency_floor * other
            for one, other in zip(leading, kept, strict=True)
        ]
    return Shares([entry.id for entry in entries], [max(share, LEAST_SHARE) for share in leading])


def top_two(chances: Sequence[float]) -> list[float]:
    """Return how often top-two Thompson sampling takes each, by its probability of being the best."""
    if len(chances) < 2:
        return list(chances)
    first = max(range(len(chances)), key=chances.__getitem__)
    others = math.fsum(one for place, one in enumerate(chances) if place != first)
    odds = [
        one / max(others if place == first else 1 - one, LEAST_DOUBT)
        for place, one in enumerate(chances)
    ]
    total = math.fsum(odds)
    shares = [
        one * (BETA + (1 - BETA) * (total - odd)) for one, odd in zip(chances, odds, strict=True)
    ]
    whole = math.fsum(shares)
    return [share / whole for share in shares]


def weighted(shares: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Multiply the shares by the weights, and scale them to a sum of 1."""
    products = [share * weight for share, weight in zip(shares, weights, strict=True)]
    total = math.fsum(products)
    return [product / total for product in products]
