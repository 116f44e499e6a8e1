"""Foretells how many more votes settle a comparison, as a range that holds in about four of five cases.

Let d be the leader's lead after n votes, and v/n its variance. With a flat prior, the lead after n t votes is foretold to be normal around d with the
variance v/n (t - 1)/t: what the first n say wrongly is made good by the others, and these have luck of their own (A. Gelman and others, *Bayesian Data
Analysis* (2013), 3.5). So the evidence is looked for on three paths, d + z sqrt(v/n (t - 1)/t) with z = 0 and z = ±DEVIATIONS. The first one is an
even chance if d is as good as it looks; but whoever leads has had luck more often than not, so the upper end is what to plan with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

DEVIATIONS = 1.28  # of a normal distribution: a tenth lies beyond on either side
MOST_TIMES = 64.0  # as many votes again as there are; further ahead nothing is foretold
STEPS = 10


class Foretold(NamedTuple):
    """Votes that are still needed; None where they are beyond what is foretold."""

    votes: int | None = None
    low: int | None = None
    high: int | None = None


NOTHING = Foretold()


def foretell(is_enough: Callable[[float, float], bool], total: float) -> Foretold:
    """Foretell how many more votes are needed.

    Args:
        is_enough: Tells whether so many times the votes that there are would be enough, if the lead ends so many of its present
            standard errors above what it is.
        total: The votes that there are.

    Returns:
        The range.
    """

    def votes(deviations: float) -> int | None:
        times = times_until(
            lambda times: is_enough(times, deviations * math.sqrt(max(0.0, 1 - 1 / times)))
        )
        return None if times is None else max(1, round((times - 1) * total))

    return Foretold(votes(0.0), votes(DEVIATIONS), votes(-DEVIATIONS))


def times_until(is_enough: Callable[[float], bool]) -> float | None:
    """Return how many times the votes that there are would be enough; None beyond what is foretold."""
    if not is_enough(MOST_TIMES):
        return None
    low, high = 0.0, math.log(MOST_TIMES)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(math.exp(middle)) else (middle, high)
    return math.exp(high)
