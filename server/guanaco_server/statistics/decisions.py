"""Decides whether one submission is better than another, or within a margin of it, validly at every look.

With M(x) and M'(y) as in confidence_sequences.py, of the leader's votes with slopes that only weigh against means below the truth,
and of the other's with slopes that only weigh against means above it,

    J = min over x of  log M(x) + log M'(x + margin)

is the evidence against "the other is better than the leader by more than the margin", whichever means make that true. A vote
moves one of the two factors, whoever it was assigned to, so their product is at most a nonnegative martingale that begins at 1,
and P(J ever reaches log 1 / alpha) <= alpha. Each leader of n submissions has ``shared_alpha(n)``: the one that is wrongly called within the margin of the best one is one of n, and the best one stays the same. (If the mean of another one becomes the best, it adds an
error of its own.) Both factors together need about half the votes that two disjoint intervals need.

J is convex in x. Most weight lies on the slopes at which decisions fall, between some 20 and 20,000 votes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from guanaco_server.statistics.confidence_sequences import (
    ALPHA,
    RATIO,
    SIZES,
    STEEPEST,
    shared_alpha,
)
from guanaco_server.statistics.foretelling import NOTHING, Foretold, foretell
from guanaco_server.statistics.votes import VoteCount

USUAL = range(2, 9)  # slopes of 1.25 to 0.07
USUAL_WEIGHT = 0.8
LOG_WEIGHTS = tuple(
    math.log(USUAL_WEIGHT / len(USUAL) if k in USUAL else (1 - USUAL_WEIGHT) / (SIZES - len(USUAL)))
    for k in range(SIZES)
)


@dataclass(frozen=True)
class _Slope:
    at: float
    growth: float
    log_weight: float


RISING = tuple(
    _Slope(STEEPEST / RATIO**k, math.expm1(STEEPEST / RATIO**k), LOG_WEIGHTS[k])
    for k in range(SIZES)
)
FALLING = tuple(
    _Slope(-STEEPEST / RATIO**k, math.expm1(-STEEPEST / RATIO**k), LOG_WEIGHTS[k])
    for k in range(SIZES)
)

HALVINGS = 22  # to a mean within 0.00003 %; what that leaves out is taken off the evidence
EDGE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """The votes' answer on a leader and another one: it is better, or at most the margin worse, or neither is shown.

    ``foretold`` is how many more on both show that it is within the margin; nothing if it is, or if none would.
    """

    is_better: bool
    is_within: bool
    foretold: Foretold = NOTHING


def compare(
    leader: VoteCount,
    other: VoteCount,
    *,
    margin: float,
    members: int,
    alpha: float = ALPHA,
    foretells: bool = True,
) -> Comparison:
    """Compare a leader with one of ``members`` submissions.

    With 95 % no leader is ever called so beside the best one wrongly, so what is said of all others together holds. One answer alone is
    wrong with a chance of ``shared_alpha(members, alpha)`` at most; for all pairs at once nothing is promised.

    Args:
        leader: The leader's votes.
        other: The other one's votes.
        margin: By how much the leader may be worse.
        members: How many submissions are compared in all.
        alpha: The chance of ever calling any leader so wrongly beside the best one.
        foretells: Estimate the votes that are still needed, which takes most of the time.

    Returns:
        The comparison.
    """
    needed = -math.log(shared_alpha(members, alpha))
    if evidence(leader, other, 0.0) >= needed:
        return Comparison(is_better=True, is_within=True)
    if evidence(leader, other, margin) >= needed:
        return Comparison(is_better=False, is_within=True)
    foretold = votes_until(leader, other, margin=margin, needed=needed) if foretells else NOTHING
    return Comparison(is_better=False, is_within=False, foretold=foretold)


def evidence(leader: VoteCount, other: VoteCount, margin: float) -> float:
    """Return J."""
    return _evidence(leader.up, leader.total, other.up, other.total, margin)


def votes_until(leader: VoteCount, other: VoteCount, *, margin: float, needed: float) -> Foretold:
    """Foretell the votes until the evidence is there, if both get as many times more as the other."""
    if not leader.total or not other.total:
        return NOTHING
    ratio, others = leader.up / leader.total, other.up / other.total
    if ratio + margin <= others:
        return NOTHING
    ours_v, theirs_v = _variance(leader), _variance(other)
    error = math.sqrt(ours_v + theirs_v)

    def is_enough(times: float, deviations: float) -> bool:
        up = min(max(ratio + deviations * ours_v / error, 0.0), 1.0)
        other_up = min(max(others - deviations * theirs_v / error, 0.0), 1.0)
        ours, theirs = times * leader.total, times * other.total
        return _evidence(ours * up, ours, theirs * other_up, theirs, margin) >= needed

    return foretell(is_enough, leader.total + other.total)


def _variance(votes: VoteCount) -> float:
    """Return the variance of a ratio; one more of each thumb, so that none is certain."""
    ratio = (votes.up + 1) / (votes.total + 2)
    return ratio * (1 - ratio) / votes.total


def _evidence(up: float, total: float, other_up: float, other_total: float, margin: float) -> float:
    low, high = EDGE, 1 - margin - EDGE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _, slope = _mixture(middle, up, total, RISING)
        _, other_slope = _mixture(middle + margin, other_up, other_total, FALLING)
        if slope + other_slope > 0:
            high = middle
        else:
            low = middle
    ours, slope = _mixture(low, up, total, RISING)
    others, other_slope = _mixture(low + margin, other_up, other_total, FALLING)
    # J is convex, so its tangent at the lower end bounds it from below: the result errs towards no evidence.
    return ours + others + min(0.0, slope + other_slope) * (high - low)


def _mixture(mean: float, up: float, total: float, slopes: Sequence[_Slope]) -> tuple[float, float]:
    """Return log M of a mean, and its derivative by the mean."""
    logs = [one.log_weight + one.at * up - total * math.log1p(mean * one.growth) for one in slopes]
    most = max(logs)
    parts = [math.exp(log - most) for log in logs]
    whole = math.fsum(parts)
    steepness = math.fsum(
        part * one.growth / (1 + mean * one.growth) for part, one in zip(parts, slopes, strict=True)
    )
    return most + math.log(whole), -total * steepness / whole
