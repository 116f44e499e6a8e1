"""Computes 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, stdev

TAIL = 0.025
EXACT_TRIALS = 1_000
Z_95 = 1.959963984540054  # the standard normal's 97.5 % quantile
FEW_T_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060)
LEAST_FOR_MEDIAN = 6  # with fewer not even smallest to largest covers the median in 95 of 100 cases

Interval = tuple[float, float]


def wilson_interval(successes: float, trials: int, z: float = Z_95) -> Interval:
    """Return the score interval of a binomial proportion, within [0, 1]; ``trials`` is at least 1.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    ratio = successes / trials
    shrink = 1 + z * z / trials
    centre = (ratio + z * z / (2 * trials)) / shrink
    spread = z / shrink * math.sqrt(ratio * (1 - ratio) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - spread), min(1.0, centre + spread)


def newcombe_interval(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Return the interval of the first ratio less the second, each given as successes and trials.

    Method 10 of R. G. Newcombe, "Interval estimation for the difference between independent proportions",
    Statistics in Medicine 17 (1998).
    """
    one, other = first[0] / first[1], second[0] / second[1]
    (one_low, one_high), (other_low, other_high) = (
        wilson_interval(*first),
        wilson_interval(*second),
    )
    difference = one - other
    return (
        difference - math.hypot(one - one_low, other_high - other),
        difference + math.hypot(one_high - one, other - other_low),
    )


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of a mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    spread = t_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - spread, fmean(values) + spread


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return two of the values that bound the median, whatever the distribution; None with too few values.

    The median lies between the (k + 1)-th smallest and the (k + 1)-th greatest value unless at most k values are on
    one side of it, of which the chance is binomial.
    """
    if len(values) < LEAST_FOR_MEDIAN:
        return None
    ranked = sorted(values)
    spare = _most_beside(len(ranked))
    return ranked[spare], ranked[-1 - spare]


@lru_cache(maxsize=4_096)
def quantile_ranks(trials: int, share: float) -> tuple[int, int]:
    """Return the ranks (from 1) of the values that bound a quantile with 95 % confidence.

    They are the greatest r with P(B < r) ≤ 2.5 % and the least s with P(B ≥ s) ≤ 2.5 %, where B is the number of values
    below the quantile. A rank is 0 or ``trials + 1`` where no value bounds it. Exact up to EXACT_TRIALS, then by the
    normal approximation, rounded outwards.
    """
    if trials > EXACT_TRIALS:
        spread = Z_95 * math.sqrt(trials * share * (1 - share))
        return math.floor(trials * share - spread), math.ceil(trials * share + spread) + 1
    below = list(accumulate(_binomial(trials, share, k) for k in range(trials + 1)))
    low = next(rank for rank, chance in enumerate(below) if chance > TAIL)
    high = next(rank for rank, chance in enumerate(below) if 1 - chance <= TAIL) + 1
    return low, high


def chance_of_at_most(successes: int, trials: int, share: float) -> float:
    """Return how likely so few of the trials succeed where each does with the chance ``share``."""
    return math.fsum(_binomial(trials, share, k) for k in range(successes + 1))


def t_95(freedom: int) -> float:
    """Return Student's 97.5 % quantile; above 8 degrees by expansion 26.7.5 of Abramowitz and Stegun, to 0.001."""
    if freedom <= len(FEW_T_95):
        return FEW_T_95[freedom - 1]
    z, n = Z_95, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _binomial(trials: int, share: float, successes: int) -> float:
    log_ways = (
        math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    )
    return math.exp(
        log_ways + successes * math.log(share) + (trials - successes) * math.log1p(-share)
    )


def _most_beside(trials: int) -> int:
    """Return the greatest k so that at most k of this many fair coins show heads in less than 2.5 % of cases."""
    if trials > 1_000:
        return math.floor(trials / 2 - Z_95 * math.sqrt(trials) / 2) - 1
    limit, below, heads = 0.025 * 2**trials, 0, -1
    while below + math.comb(trials, heads + 1) <= limit:
        heads += 1
        below += math.comb(trials, heads)
    return heads
