"""Computes 95 % intervals that hold at every look at once: confidence sequences.

For thumbs, let each vote X_i be 0 or 1 with the chance μ_i given all that happened before it; the μ_i may differ, since users,
apps and days do. With S the thumbs up of n votes and μ̄ the mean of μ_1 … μ_n,

    M(μ̄) = Σ_k w_k exp(λ_k S) / (1 - μ̄ + μ̄ exp(λ_k))ⁿ

is at most a nonnegative martingale that begins at 1: E exp(λX) = 1 - μ + μ exp(λ), and the logarithm of that is concave in μ,
so that n times its value at the mean is at least the sum. By Ville's inequality P(M ever reaches 1 / alpha) <= alpha: whatever
one does upon looking, and whatever assigned the users, as long as it did not know the vote. The interval holds the μ̄ with
M(μ̄) < 1 / alpha; M is convex, so it is one. S and n are all it needs.
(S. R. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, "Time-uniform Chernoff bounds via nonnegative supermartingales",
Probability Surveys 17 (2020), the sub-Bernoulli case; H. Robbins, "Statistical methods related to the law of the iterated logarithm", 1970, for
mixtures.)

For strengths, which are no means of votes, the sequence is asymptotic (I. Waudby-Smith, D. Arbour, R. Sinha, E. H. Kennedy,
A. Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52 (2024), theorem 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

ALPHA = 0.05
FIRST_BLOCK = 32

STEEPEST = 3.2
RATIO = 1.6
SIZES = 13  # the flattest slope is 0.011, the best one for a million votes
SLOPES = tuple(sign * STEEPEST / RATIO**k for k in range(SIZES) for sign in (1, -1))
GROWTH = tuple((slope, math.expm1(slope)) for slope in SLOPES)
LOG_WEIGHT = -math.log(len(SLOPES))

ITERATIONS = 60  # 4 to 9 are needed; what is returned errs outwards after any number
TOLERANCE = 1e-11
MANY = 50  # intervals, from which on they are computed faster together
TIGHT_AT = 1_000.0  # users at which the asymptotic sequence is narrowest


def shared_alpha(members: int, alpha: float = ALPHA) -> float:
    """Return the error of each of ``members`` sequences so that all together err with at most ``alpha``, however many join later.

    ``alpha / members`` would not do: whoever joined as the k-th had ``alpha / k`` at first, and the sum of these has no
    bound. Blocks of places have halves of the error: the first 32 one half, the next 32 a quarter, the next 64 an eighth …
    """
    places, share, end = FIRST_BLOCK, alpha / 2, FIRST_BLOCK
    while members > end:
        places, share, end = end, share / 2, 2 * end
    return share / places


@lru_cache(maxsize=65_536)
def proportion_sequence(successes: int, trials: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the interval of the mean chance of success, valid at all looks together; ``trials`` is at least 1."""
    threshold = -math.log(alpha)
    ratio = successes / trials
    low = 0.0 if successes == 0 else _end(0.0, ratio, successes, trials, threshold)
    high = 1.0 if successes == trials else _end(1.0, ratio, successes, trials, threshold)
    return low, high


def proportion_sequences(
    counts: Sequence[tuple[int, int]], alpha: float = ALPHA
) -> list[tuple[float, float]]:
    """Return what ``proportion_sequence`` does for each (successes, trials), to 1e-7; many take a twentieth of the time."""
    if len(counts) < MANY:
        return [proportion_sequence(*one, alpha) for one in counts]
    import numpy as np

    numbers = np.asarray(counts, dtype=np.float64)
    threshold = -math.log(alpha)
    lows = _ends(np.zeros(len(counts)), numbers, threshold)
    highs = _ends(np.ones(len(counts)), numbers, threshold)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def difference_sequence(
    first: tuple[int, int], second: tuple[int, int], alpha: float = ALPHA
) -> tuple[float, float]:
    """Return the interval of the first proportion less the second, each given as successes and trials."""
    one_low, one_high = proportion_sequence(*first, alpha / 2)
    other_low, other_high = proportion_sequence(*second, alpha / 2)
    return one_low - other_high, one_high - other_low


def asymptotic_multiple(clusters: float, alpha: float) -> float:
    """Return by how many standard errors an estimate from this number of clusters may be off, at all looks together."""
    n, spread = max(clusters, 1.0), -2 * math.log(alpha)
    rho = (spread + math.log(spread) + 1) / TIGHT_AT
    return math.sqrt((n * rho + 1) / (n * rho) * (math.log(n * rho + 1) + spread))


def log_evidence_against(mean: float, successes: int, trials: int) -> float:
    """Return log M of a mean within (0, 1)."""
    return _evidence(mean, successes, trials)[0]


def _evidence(mean: float, successes: int, trials: int) -> tuple[float, float]:
    """Return log M of a mean within (0, 1), and its derivative by the mean."""
    logs = [slope * successes - trials * math.log1p(mean * growth) for slope, growth in GROWTH]
    most = max(logs)
    parts = [math.exp(log - most) for log in logs]
    total = math.fsum(parts)
    slopes = (
        part * growth / (1 + mean * growth) for part, (_, growth) in zip(parts, GROWTH, strict=True)
    )
    return most + math.log(total) + LOG_WEIGHT, -trials * math.fsum(slopes) / total


def _end(outside: float, inside: float, successes: int, trials: int, threshold: float) -> float:
    """Find the end of the interval between a mean that may be excluded and one that is not; the result errs outwards.

    Newton's method, and bisection where its step would leave the bracket.
    """
    log, slope = _evidence(outside, successes, trials)
    if log < threshold:
        return outside
    at = outside
    for _ in range(ITERATIONS):
        step = (threshold - log) / slope if slope else math.inf
        if abs(step) < TOLERANCE or abs(outside - inside) < TOLERANCE:
            break
        at += step
        if not min(outside, inside) < at < max(outside, inside):
            at = (outside + inside) / 2
        log, slope = _evidence(at, successes, trials)
        if log >= threshold:
            outside = at
        else:
            inside = at
    return outside


def _evidences(means: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return what ``_evidence`` does, for rows of successes and trials."""
    import numpy as np

    slopes, growth = np.asarray(GROWTH).T
    successes, trials = counts[:, :1], counts[:, 1:]
    grown = means[:, None] * growth
    logs = slopes * successes - trials * np.log1p(grown)
    most = logs.max(axis=1, keepdims=True)
    parts = np.exp(logs - most)
    totals = parts.sum(axis=1)
    steepness = (parts * (growth / (1 + grown))).sum(axis=1)
    return most[:, 0] + np.log(totals) + LOG_WEIGHT, -trials[:, 0] * steepness / totals


def _ends(outside: Floats, counts: Floats, threshold: float) -> Floats:
    """Find what ``_end`` does, for rows of successes and trials."""
    import numpy as np

    inside = counts[:, 0] / counts[:, 1]
    at = outside.copy()
    logs, slopes = _evidences(at, counts)
    left = np.flatnonzero((logs >= threshold) & (inside != outside))
    logs, slopes = logs[left], slopes[left]
    for _ in range(ITERATIONS):
        with np.errstate(divide="ignore"):
            steps = (threshold - logs) / slopes
        is_open = (np.abs(steps) >= TOLERANCE) & (np.abs(outside - inside)[left] >= TOLERANCE)
        left, steps = left[is_open], steps[is_open]
        if not len(left):
            break
        tried = at[left] + steps
        low, high = np.minimum(outside, inside)[left], np.maximum(outside, inside)[left]
        is_within = (low < tried) & (tried < high)
        tried = np.where(is_within, tried, (outside[left] + inside[left]) / 2)
        at[left] = tried
        logs, slopes = _evidences(tried, counts[left])
        is_out = logs >= threshold
        outside[left[is_out]] = tried[is_out]
        inside[left[~is_out]] = tried[~is_out]
    return outside
