"""Estimates how thumbs-up ratios are spread over submissions, and the chance that one is within a margin of the best.

The ratios of past seasons' submissions are taken as draws from a Beta distribution, which is fitted to their votes by maximum
likelihood (beta-binomial). With it as the prior, the ratio of a submission with u thumbs up and d down is distributed as
Beta(a + u, b + d), and

    P(leader within margin of the best) = ∫ f_leader(x) ∏ F_other(x + margin) dx

is a sum over a grid, without sampling noise. Unlike the evidence of decisions.py this claim depends on the prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from guanaco_server.statistics.votes import VoteCount

GRID = 512
FEWEST_SUBMISSIONS = 10  # whose ratios say how ratios are spread
FEWEST_VOTES = 20  # of each
STRENGTHS = tuple(2.0 * 1.15**k for k in range(50))  # a + b: 2 is flat, 1,900 is nearly one value
MEANS = 60

_POINTS = [(cell + 0.5) / GRID for cell in range(GRID)]
_LOG = [math.log(x) for x in _POINTS]
_LOG_REST = [math.log1p(-x) for x in _POINTS]


@dataclass(frozen=True)
class BetaPrior:
    """``submissions`` of past seasons say so; 0 where the prior is flat for want of any."""

    up: float = 1.0
    down: float = 1.0
    submissions: int = 0


def fit_prior(past: Sequence[VoteCount]) -> BetaPrior:
    """Fit the prior to the votes of past seasons' submissions; flat where they are too few."""
    counts = [one for one in past if one.total >= FEWEST_VOTES]
    if len(counts) < FEWEST_SUBMISSIONS:
        return BetaPrior()
    ratios = sorted((one.up + 1) / (one.total + 2) for one in counts)
    low, high = ratios[0], ratios[-1]
    _, mean, strength = max(
        (_log_likelihood(counts, mean, strength), mean, strength)
        for mean in (low + (high - low) * (k + 0.5) / MEANS for k in range(MEANS))
        for strength in STRENGTHS
    )
    return BetaPrior(mean * strength, (1 - mean) * strength, len(counts))


def chance_within(
    leader: VoteCount, others: Sequence[VoteCount], margin: float, prior: BetaPrior
) -> float:
    """Return the posterior probability that the leader is at most the margin worse than the best of the others."""
    mass = _posterior(leader, prior)
    shift = int(margin * GRID)
    logs = [0.0] * GRID
    for other in others:
        # The margin is cut to whole cells, and a whole cell counts as below: a difference of at most 0.1 points.
        for cell, reached in enumerate(accumulate(_posterior(other, prior))):
            logs[cell] += math.log(max(reached, 1e-300))
    return min(
        1.0,
        math.fsum(
            part * math.exp(logs[min(cell + shift, GRID - 1)]) for cell, part in enumerate(mass)
        ),
    )


def _posterior(votes: VoteCount, prior: BetaPrior) -> list[float]:
    up, down = votes.up + prior.up - 1, votes.down + prior.down - 1
    logs = [up * log + down * rest for log, rest in zip(_LOG, _LOG_REST, strict=True)]
    most = max(logs)
    mass = [math.exp(log - most) for log in logs]
    total = math.fsum(mass)
    return [part / total for part in mass]


def _log_likelihood(counts: Sequence[VoteCount], mean: float, strength: float) -> float:
    a, b = mean * strength, (1 - mean) * strength
    whole = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.fsum(
        whole + math.lgamma(a + one.up) + math.lgamma(b + one.down) - math.lgamma(a + b + one.total)
        for one in counts
    )
