"""Computes for each entry the probability that it is the best one, given its ratings.

The true ratio of an entry with u thumbs up and d down is distributed as Beta(1 + u, 1 + d), the posterior of a uniform
prior. The entry is the best one with the probability

    p_i = ∫ f_i(x) ∏_{j≠i} F_j(x) dx

with f its density and F its distribution function: a sum over a grid here, which costs no sampling noise and repeats
exactly. Entries with equal ratings share their curves, and curves are kept from one call to the next.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

GRID = 512  # cells of 0.2 %: ratios that are closer count as equal
REACH = 6.0  # standard deviations below the highest mean, under which the best one's ratio is not
SLICE_S = 0.001  # of work, after which other tasks have their turn
LEAST = 1e-300

_POINTS = [(cell + 0.5) / GRID for cell in range(GRID)]
_LOG = [math.log(x) for x in _POINTS]
_LOG_REST = [math.log1p(-x) for x in _POINTS]

Votes = tuple[int, int]


@dataclass(frozen=True)
class Curves:
    """Over the grid: log F, and f / F."""

    log_cumulative: array[float]
    hazard: array[float]

    @staticmethod
    def of(votes: Votes) -> Curves:
        up, down = votes
        logs = [up * log + down * rest for log, rest in zip(_LOG, _LOG_REST, strict=True)]
        top = max(logs)
        mass = [math.exp(log - top) for log in logs]
        total = math.fsum(mass)
        mass = [part / total for part in mass]
        middle = [end - part / 2 for end, part in zip(accumulate(mass), mass, strict=True)]
        return Curves(
            array("d", (math.log(max(part, LEAST)) for part in middle)),
            array("d", (p / m if m > LEAST else 0.0 for p, m in zip(mass, middle, strict=True))),
        )


class Posterior:
    def __init__(self) -> None:
        self._curves: dict[Votes, Curves] = {}

    async def best_probabilities(self, votes: Sequence[Votes]) -> list[float]:
        """p_i of each, in order; they add up to 1. Other tasks run meanwhile."""
        pace = _Pace()
        counts = Counter(votes)
        curves: dict[Votes, Curves] = {}
        for each in counts:
            curves[each] = self._curves.get(each) or Curves.of(each)
            await pace.keep()
        self._curves = curves
        start = _lowest_cell(counts)
        logs = [0.0] * (GRID - start)
        for each, times in counts.items():
            log = curves[each].log_cumulative[start:]
            logs = [total + times * one for total, one in zip(logs, log, strict=True)]
            await pace.keep()
        top = max(logs)
        together = [math.exp(log - top) for log in logs]
        chances: dict[Votes, float] = {}
        for each in counts:
            chances[each] = sum(map(mul, curves[each].hazard[start:], together))
            await pace.keep()
        total = math.fsum(chances[each] * times for each, times in counts.items())
        return [chances[each] / total for each in votes]


class _Pace:
    """Lets other tasks run between slices of work."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def keep(self) -> None:
        if time.perf_counter() - self._since > SLICE_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


def _lowest_cell(counts: Counter[Votes]) -> int:
    """Below it no best one's ratio is: the entry that is surely good keeps it above."""
    floor = 0.0
    for up, down in counts:
        a, b = up + 1, down + 1
        deviation = math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
        floor = max(floor, a / (a + b) - REACH * deviation)
    return min(int(floor * GRID), GRID - 1)
