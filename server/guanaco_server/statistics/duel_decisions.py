"""Decides by their duels whether one submission is better than another, or within a margin of it, validly at every look.

A duel of the two is worth X to the leader: 1 if it was preferred, 0 if the other was, a half for a tie or two bad replies. Let x_i be
the mean of X_i given all that happened before, which differs with users and days. With D = 2X - 1, and e twice the margin,

    M = Σ_k w_k (1 + s_k (1 + e))^won (1 + s_k e)^tied (1 - s_k (1 - e))^lost

is what a gambler has who began with 1 and staked the shares s_k that the leader is not beyond the margin. Divided by the product of
1 + s_k (2 x_i - 1 + e), each part of it is a martingale; and a logarithm is concave, so that product is at most 1 while the mean of the x_i is
at most a half less the margin. So with P(M ever reaches 1 / alpha) <= alpha the claim "of those who compared the two, the mean preferred the leader
with a chance of at least a half less the margin" is never made wrongly: whatever chose the pairs, as long as it did not know the vote.
The counts are all that it needs. (I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024).)

A tie costs the gambler little, where an interval for the mean would take it for half of a win and half of a loss.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from guanaco_server.statistics.confidence_sequences import ALPHA, shared_alpha
from guanaco_server.statistics.decisions import Comparison
from guanaco_server.statistics.foretelling import NOTHING, Foretold, foretell

STEEPEST = 0.9
RATIO = 1.5
SIZES = 10  # the smallest stake, 0.023, is right for a lead of 2 points
STAKES = tuple(STEEPEST / RATIO**k for k in range(SIZES))
LOG_WEIGHT = -math.log(SIZES)


COUNTED_PER_USER = (
    5  # of a user's duels on a pair: the first ones, which are chosen without knowing any vote
)


class DuelCount(NamedTuple):
    """The duels of two submissions as one of them sees them; both bad is a tie."""

    won: int = 0
    tied: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        return self.won + self.tied + self.lost

    @property
    def seen_by_other(self) -> DuelCount:
        return DuelCount(self.lost, self.tied, self.won)

    def plus(self, worth: float) -> DuelCount:
        """Count one more: worth 1 if it was won, 0 if it was lost."""
        if worth == 0.5:
            return self._replace(tied=self.tied + 1)
        if worth > 0.5:
            return self._replace(won=self.won + 1)
        return self._replace(lost=self.lost + 1)


def compare_duels(
    duels: DuelCount,
    *,
    margin: float,
    members: int,
    alpha: float = ALPHA,
    dependence: float = 1.0,
    foretells: bool = True,
) -> Comparison:
    """Compare a leader with one of ``members`` submissions by the duels of the two.

    The error is shared as in decisions.py, and foretold is how many more duels of the two show that the leader is within the margin.

    Args:
        duels: The results, as the leader sees them.
        margin: By how much less than a half the chance to be preferred may be.
        members: How many submissions are compared in all.
        alpha: The chance of ever calling any leader so wrongly beside the best one.
        dependence: How many times less these duels tell than independent ones would (strength_prior.py), for what is foretold; the claim needs no such figure.
        foretells: Estimate the duels that are still needed.

    Returns:
        The comparison.
    """
    needed = needed_evidence(members, alpha)
    if evidence_of_duels(duels, 0.0) >= needed:
        return Comparison(is_better=True, is_within=True)
    if evidence_of_duels(duels, margin) >= needed:
        return Comparison(is_better=False, is_within=True)
    foretold = NOTHING
    if foretells:
        foretold = duels_until(duels, margin=margin, needed=needed, dependence=dependence)
    return Comparison(is_better=False, is_within=False, foretold=foretold)


def needed_evidence(members: int, alpha: float = ALPHA) -> float:
    return -math.log(shared_alpha(members, alpha))


def evidence_of_duels(duels: DuelCount, margin: float) -> float:
    """Return log M."""
    return _evidence(duels.won, duels.tied, duels.lost, margin)


def fewest_duels(duels: DuelCount, *, margin: float, needed: float) -> int | None:
    """Return the least number of duels without which the evidence is too little; None if it is already.

    Without a win each part of M is smaller than without a tie, and without a loss it is greater: so wins go first, then ties.
    """
    if evidence_of_duels(duels, margin) < needed:
        return None

    def left(gone: int) -> DuelCount:
        wins = min(gone, duels.won)
        return duels._replace(won=duels.won - wins, tied=duels.tied - (gone - wins))

    low, high = 0, duels.won + duels.tied  # without all of these there is no evidence
    while high - low > 1:
        middle = (low + high) // 2
        if evidence_of_duels(left(middle), margin) < needed:
            high = middle
        else:
            low = middle
    return high


def duels_until(
    duels: DuelCount, *, margin: float, needed: float, dependence: float = 1.0
) -> Foretold:
    """Foretell how many more duels of the two bring the evidence; nothing if none would, or none were held.

    Duels of one user depend on each other, so the variance of the lead is ``dependence`` times as great as their number says.
    """
    total = duels.total
    if not total or (mean := (duels.won + duels.tied / 2) / total) <= 0.5 - margin:
        return NOTHING
    squares = (duels.won + 0.5 + duels.tied / 4) / (total + 1)  # one more result of each side
    drawn = (mean * total + 0.5) / (total + 1)
    error = math.sqrt(dependence * (squares - drawn * drawn) / total)

    def is_enough(times: float, deviations: float) -> bool:
        shift = min(max(deviations * error * total, -duels.won), duels.lost)
        won, lost = duels.won + shift, duels.lost - shift
        return _evidence(times * won, times * duels.tied, times * lost, margin) >= needed

    return foretell(is_enough, total)


def _evidence(won: float, tied: float, lost: float, margin: float) -> float:
    e = 2 * margin
    logs = [
        won * math.log1p(stake * (1 + e))
        + tied * math.log1p(stake * e)
        + lost * math.log1p(-stake * (1 - e))
        for stake in STAKES
    ]
    most = max(logs)
    return most + math.log(math.fsum(math.exp(log - most) for log in logs)) + LOG_WEIGHT
