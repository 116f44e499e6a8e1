"""Estimates how strengths in duels are spread over submissions, and the chance that one is within a margin of the best.

The strengths θ of a season are taken as draws from a normal distribution around their mean, in log odds: one is preferred to another with the
chance 1 / (1 + exp(θ' - θ)), a tie being half. Ties vary less than wins and losses, so the log likelihood is divided by the share of
duels that have a winner (quasi-likelihood; R. W. M. Wedderburn, Biometrika 61, 1974). The posterior is taken as normal around its
mode (Laplace), and

    P(leader within the margin of the best) = P(θ_other - θ_leader <= log((1/2 + margin) / (1/2 - margin)) for each other one)

as the share of draws from it, always the same ones. The deviation of the prior is the one under which the duels of past seasons are most
likely. Unlike the evidence of duel_decisions.py this claim depends on the prior.

Duels of one user depend on each other where users have tastes. By how much is measured: the squares of the users' scores (what their duels were worth less what was
expected, summed by submission), as many times as great as the squares of single duels' scores (a design effect; L. Kish, *Survey Sampling*, 1965). So many times less do duels count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.duel_strengths import PairCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Codes = NDArray[np.int64]

WIDE = 1.0  # without past seasons; the chances to be preferred to an average one lie between 12 and 88 % in 95 % of cases
FEWEST_SUBMISSIONS = 10  # whose strengths say how strengths are spread
FEWEST_DUELS = 20  # of each
SPREADS = tuple(0.02 * 1.15**k for k in range(34))  # up to 2
DRAWS = 20_000
STEPS = 30
TOLERANCE = 1e-8
NEGLIGIBLE = 1e-7  # chance to be beyond the margin, below which one is not drawn


@dataclass(frozen=True)
class StrengthPrior:
    """``spread`` is a standard deviation in log odds; ``submissions`` of past seasons say so, 0 where it is wide for want of any."""

    spread: float = WIDE
    submissions: int = 0


@dataclass(frozen=True)
class _Duels:
    """The duels of pairs in columns: the first submission, the second, the number, and the first one's wins and half its ties."""

    size: int
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    held: Floats
    won: Floats
    decided: float


@dataclass(frozen=True)
class _Posterior:
    mode: Floats
    covariance: Floats
    log_evidence: float


def fit_strength_prior(past: Sequence[PairCounts]) -> StrengthPrior:
    """Fit the prior to the duels of past seasons; wide where they are too few."""
    seasons = [found for found in map(_of_known, past) if found]
    submissions = sum(len(_names(season)) for season in seasons)
    if submissions < FEWEST_SUBMISSIONS:
        return StrengthPrior()
    columns = [_columns(sorted(_names(season)), season) for season in seasons]
    _, spread = max(
        (sum(_posterior(season, spread).log_evidence for season in columns), spread)
        for spread in SPREADS
    )
    return StrengthPrior(spread, submissions)


def chance_within_by_duels(
    leader: str,
    others: Collection[str],
    counts: PairCounts,
    margin: float,
    prior: StrengthPrior,
    dependence: float = 1.0,
) -> float:
    """Return the posterior probability that the leader is at most the margin worse than the best of the others.

    Args:
        leader: A submission.
        others: Those that it is compared with; one without a duel may be as good as the prior says.
        counts: All duels that count, also those of others.
        margin: By how much less than a half the chance to be preferred may be.
        prior: The prior.
        dependence: How many times less the duels tell than independent ones (``dependence_of``).
    """
    import numpy as np

    names = sorted(_names(counts) | {leader, *others})
    duels = _columns(names, counts)
    found = _posterior(replace(duels, decided=duels.decided * dependence), prior.spread)
    places = {name: place for place, name in enumerate(names)}
    mine = places[leader]
    theirs = np.asarray([places[name] for name in sorted(others)], dtype=np.int64)
    covariance = found.covariance
    gap = found.mode[theirs] - found.mode[mine]
    across = covariance[np.ix_(theirs, theirs)] + covariance[mine, mine]
    across -= covariance[theirs, mine][:, None] + covariance[theirs, mine][None, :]
    allowed = math.log((0.5 + margin) / (0.5 - margin))
    deviations = np.sqrt(np.diag(across))
    far = np.asarray([math.erfc(z / math.sqrt(2)) / 2 for z in (allowed - gap) / deviations])
    near = np.flatnonzero(far > NEGLIGIBLE)
    if not len(near):
        return 1.0
    factor = np.linalg.cholesky(across[np.ix_(near, near)] + 1e-12 * np.eye(len(near)))
    drawn = _draws(len(near)) @ factor.T + gap[near]
    return float((drawn <= allowed).all(axis=1).mean())


def dependence_of(
    users: Codes, first: Codes, second: Codes, worths: Floats, expected: Floats, leader: int
) -> float:
    """Return how many times less these duels tell than independent ones would, at least 1.

    Args:
        users: The user of each duel, as a number.
        first: A submission, as a number from 0.
        second: Its rival.
        worths: 1 where the first was preferred, 0 where the second was, a half otherwise.
        expected: What the strengths of both lead one to expect.
        leader: The submission that the claim is about. It is in most duels, so its own scores are looked at too, and the greater answer counts.
    """
    import numpy as np

    surprise = worths - expected
    scores = np.concatenate([surprise, -surprise])
    submissions = np.concatenate([first, second])
    cells = np.concatenate([users, users]) * (int(submissions.max(initial=0)) + 1) + submissions
    found = 1.0
    for places in (slice(None), submissions == leader):
        alone = float(scores[places] @ scores[places])
        _, which = np.unique(cells[places], return_inverse=True)
        together = np.bincount(which.ravel(), weights=scores[places])
        if alone:
            found = max(found, float(together @ together) / alone)
    return found


def _of_known(season: PairCounts) -> dict[tuple[str, str], DuelCount]:
    """Return the duels between submissions that have enough of them."""
    held: dict[str, int] = {}
    for pair, duels in season.items():
        for name in pair:
            held[name] = held.get(name, 0) + duels.total
    return {
        pair: duels
        for pair, duels in season.items()
        if duels.total and min(held[name] for name in pair) >= FEWEST_DUELS
    }


def _names(counts: Mapping[tuple[str, str], DuelCount]) -> set[str]:
    return {name for pair, duels in counts.items() if duels.total for name in pair}


def _columns(names: Sequence[str], counts: PairCounts) -> _Duels:
    import numpy as np

    places = {name: place for place, name in enumerate(names)}
    pairs = [(pair, duels) for pair, duels in sorted(counts.items()) if duels.total]
    tied = sum(duels.tied for _, duels in pairs)
    total = sum(duels.total for _, duels in pairs)
    return _Duels(
        size=len(names),
        first=np.asarray([places[one] for (one, _), _ in pairs], dtype=np.int64),
        second=np.asarray([places[other] for (_, other), _ in pairs], dtype=np.int64),
        held=np.asarray([duels.total for _, duels in pairs], dtype=np.float64),
        won=np.asarray([duels.won + duels.tied / 2 for _, duels in pairs], dtype=np.float64),
        decided=(total - tied + 1) / (total + 1),
    )


def _posterior(duels: _Duels, spread: float) -> _Posterior:
    """Find the mode by Newton's method, and the logarithm of the duels' likelihood under the prior, but for a constant."""
    import numpy as np

    strengths = np.zeros(duels.size)
    precision = 1 / spread**2
    for _ in range(STEPS):
        gradient, curvature, _ = _derivatives(duels, strengths, precision)
        step = np.linalg.solve(curvature, gradient)
        strengths = strengths + step * min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < TOLERANCE:
            break
    _, curvature, height = _derivatives(duels, strengths, precision)
    _, log_determinant = np.linalg.slogdet(curvature)
    evidence = height - duels.size * math.log(spread) - log_determinant / 2
    covariance = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
    return _Posterior(strengths, covariance, float(evidence))


def _derivatives(
    duels: _Duels, strengths: Floats, precision: float
) -> tuple[Floats, Floats, float]:
    """Return the gradient of the log posterior, minus its second derivative, and its value."""
    import numpy as np

    logits = strengths[duels.first] - strengths[duels.second]
    chances = 1 / (1 + np.exp(-logits))
    surprise = (duels.won - duels.held * chances) / duels.decided
    weight = duels.held * chances * (1 - chances) / duels.decided
    gradient = -precision * strengths
    np.add.at(gradient, duels.first, surprise)
    np.add.at(gradient, duels.second, -surprise)
    between = np.zeros((duels.size, duels.size))
    np.add.at(between, (duels.first, duels.second), weight)
    between += between.T
    curvature = np.diag(between.sum(axis=1) + precision) - between
    logs = duels.won * logits - duels.held * np.logaddexp(0, logits)
    height = logs.sum() / duels.decided - precision * float(strengths @ strengths) / 2
    return gradient, curvature, float(height)


@lru_cache(maxsize=64)
def _draws(size: int) -> Floats:
    import numpy as np

    return np.random.default_rng(1).standard_normal((DRAWS, size))
