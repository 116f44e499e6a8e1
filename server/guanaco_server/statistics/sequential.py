"""Sequential tests of counts, which may be looked at after every observation.

An observation X is 0 or 1 with the chance μ_i given all that was recorded before it. With S of n, and slopes λ_k that only weigh
against means below the truth,

    M(m) = Σ_k w_k exp(λ_k S) / (1 - m + m exp(λ_k))ⁿ

is at most a nonnegative martingale that begins at 1 while the mean of μ_1 … μ_n is at most m (confidence_sequences.py has the
reason and its source), so by Ville's inequality P(M ever reaches 1 / alpha) <= alpha: however often one looks, whatever one does
upon seeing it, and although the chances differ. No constant chance and no independence is assumed.

To compare two versions, the only chance that is needed is the one with which conversations were given to them. Each conversation
goes to the new version with the chance ``share``, whatever it will be like. If the new version is as good, a conversation that turns out bad
is therefore one of the new version's with that chance too, given all bad ones before it: whether conversations fail
alone or in rows, whether a user's are alike, and whatever the hour does to all of them. So the bad conversations are counted, and
tested is whether more than ``share`` of them are the new version's. (R. A. Fisher, "The Design of Experiments", 1935, for tests that use
the random assignment alone.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

STEEPEST = 6.4  # right for a share of 0.2 % of which all are bad
RATIO = 1.6
SIZES = 12  # the flattest slope is 0.036
SLOPES = tuple(STEEPEST / RATIO**k for k in range(SIZES))
LOG_WEIGHT = -math.log(SIZES)


@dataclass(frozen=True)
class Proportion:
    """``bad`` of ``total`` outcomes."""

    bad: int
    total: int

    @property
    def rate(self) -> float:
        return self.bad / self.total if self.total else 0.0


def is_over(seen: Proportion, limit: float, *, alpha: float) -> bool:
    """Tell whether the mean chance is over the limit, with a chance of at most ``alpha`` ever to say so wrongly."""
    return log_evidence_above(limit, seen.bad, seen.total) >= -math.log(alpha)


def is_worse(
    new: Proportion, old: Proportion, *, share: float, margin: float, alpha: float
) -> bool:
    """Tell whether the new version has more bad conversations than its share, and a rate that is higher by more than the margin.

    Args:
        new: The new version's conversations, or users who were given to it by the same chance.
        old: The old version's.
        share: The chance with which each was given to the new version.
        margin: A rate that is higher by this much is no reason to say so.
        alpha: The chance of ever saying so of a version that is as good.

    Returns:
        Whether it is worse.
    """
    if new.rate <= old.rate + margin:
        return False
    return is_over(Proportion(new.bad, new.bad + old.bad), share, alpha=alpha)


def log_evidence_above(mean: float, successes: int, trials: int) -> float:
    """Return log M of a mean within (0, 1)."""
    logs = [slope * successes - trials * math.log1p(mean * math.expm1(slope)) for slope in SLOPES]
    most = max(logs)
    return most + math.log(math.fsum(math.exp(log - most) for log in logs)) + LOG_WEIGHT
