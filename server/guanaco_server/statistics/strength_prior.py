"""Estimates how strengths in duels are spread over submissions, and the chance that one is within a margin of the best.

The strengths θ of a season are taken as draws from a normal distribution around their mean, in log odds: one is preferred to another with the
chance 1 / (1 + exp(θ' - θ)), a tie being half. Ties vary less than wins and losses, so the log likelihood is divided by the share of
duels that have a winner (quasi-likelihood; R. W. M. Wedderburn, Biometrika 61, 1974). The posterior is taken as normal around its
mode (Laplace), and

    P(leader within the margin of the best) = P(θ_other - θ_leader <= log((1/2 + margin) / (1/2 - margin)) for each other one)

as the share of draws from it, always the same ones. The deviation of the prior is the one under which the duels of past seasons are most
likely. A season's own may be another one, so its logarithm is normal around that of the past ones, and the posterior is the mixture over deviations, each weighed by how
likely it makes the season's duels. Unlike the evidence of duel_decisions.py this claim depends on the prior, the less the more duels there are.

Duels of one user depend on each other where users have tastes. By how much is measured: the squares of the users' scores (what their duels were worth less what was
expected, summed by submission), as many times as great as the squares of single duels' scores (a design effect; L. Kish, *Survey Sampling*, 1965). So many times less do duels count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
NEGLIGIBLE_SPREAD = 1e-4  # probability of a spread, below which it is left out
FEWEST_DRAWS = 200  # for a spread that is hardly likely
DOUBT = 0.5  # a season's spread is between 2.7 times less and 2.7 times more than that of past ones in 95 % of cases
DEVIATES = tuple(0.75 * k for k in range(-4, 5))
NUMBERS_AT_ONCE = 200_000  # in an array of curvatures


@dataclass(frozen=True)
class StrengthPrior:
    """``spread`` is a standard deviation in log odds; ``submissions`` of past seasons say so, 0 where it is wide for want of any.

    ``doubt`` is the standard deviation of the logarithm of this season's spread around it; 0 if it is taken as known.
    """

    spread: float = WIDE
    submissions: int = 0
    doubt: float = DOUBT

    def spreads(self) -> list[tuple[float, float]]:
        """Return spreads that this season may have, with how many deviations each is from the expected one."""
        if not self.doubt:
            return [(0.0, self.spread)]
        return [(deviate, self.spread * math.exp(self.doubt * deviate)) for deviate in DEVIATES]


@dataclass(frozen=True)
class _NormalGaps:
    """By how much others are stronger, for one spread of strengths, whose probability is ``weight``."""

    weight: float
    means: Floats
    covariance: Floats

    def beyond(self, allowed: float) -> Floats:
        """Return for each other one the chance to be beyond what is allowed."""
        import numpy as np

        deviations = np.sqrt(np.diag(self.covariance))
        ratios = (allowed - self.means) / deviations / math.sqrt(2)
        return np.asarray([math.erfc(ratio) / 2 for ratio in ratios.tolist()])

    def chance_within(self, allowed: float, draws: slice) -> float:
        """Return the chance that none is beyond what is allowed, from some of the draws."""
        import numpy as np

        near = np.flatnonzero(self.beyond(allowed) > NEGLIGIBLE)
        if not len(near):
            return 1.0
        across = self.covariance[np.ix_(near, near)] + 1e-12 * np.eye(len(near))
        drawn = _draws(len(near))[draws] @ np.linalg.cholesky(across).T + self.means[near]
        return float((drawn <= allowed).all(axis=1).mean())


@dataclass(frozen=True)
class Gaps:
    """By how much others are stronger than a leader, in log odds: normal distributions, one for each spread of strengths that is likely."""

    parts: tuple[_NormalGaps, ...]

    def chance_within(self, margin: float, draws: int = DRAWS) -> float:
        """Return the probability that none is more than the margin better. The likelier a spread, the more draws it has."""
        allowed = _log_odds(margin)
        found, total, end = 0.0, 0.0, 0
        for part in self.parts:
            count = max(round(part.weight * draws), FEWEST_DRAWS)
            begin = min(end, DRAWS - count)
            end = begin + count
            found += part.weight * part.chance_within(allowed, slice(begin, end))
            total += part.weight
        return found / total

    def most_within(self, margin: float) -> float:
        """Return the least of the probabilities that a single one is not more than the margin better; that of all is no greater."""
        import numpy as np

        allowed = _log_odds(margin)
        beyond = np.sum([part.weight * part.beyond(allowed) for part in self.parts], axis=0)
        return 1.0 - float(beyond.max(initial=0.0)) / sum(part.weight for part in self.parts)


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
class _Posteriors:
    """The posteriors of the strengths, one for each spread of the prior."""

    modes: Floats
    covariances: Floats
    log_evidence: Floats


def fit_strength_prior(past: Sequence[PairCounts]) -> StrengthPrior:
    """Fit the prior to the duels of past seasons; wide where they are too few."""
    import numpy as np

    seasons = [found for found in map(_of_known, past) if found]
    submissions = sum(len(_names(season)) for season in seasons)
    if submissions < FEWEST_SUBMISSIONS:
        return StrengthPrior()
    columns = [_columns(sorted(_names(season)), season) for season in seasons]
    heights = np.zeros(len(SPREADS))
    for season in columns:
        parts = _posteriors(season, SPREADS)
        heights += np.concatenate([part.log_evidence for part in parts])
    return StrengthPrior(SPREADS[int(heights.argmax())], submissions)


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
    return gaps_of(leader, others, counts, prior, dependence).chance_within(margin)


def gaps_of(
    leader: str,
    others: Collection[str],
    counts: PairCounts,
    prior: StrengthPrior,
    dependence: float = 1.0,
) -> Gaps:
    """Return by how much the others are stronger than the leader, as it is known after these duels."""
    import numpy as np

    names = sorted(_names(counts) | {leader, *others})
    duels = _columns(names, counts)
    duels = replace(duels, decided=duels.decided * dependence)
    places = {name: place for place, name in enumerate(names)}
    mine = places[leader]
    theirs = np.asarray([places[name] for name in sorted(others)], dtype=np.int64)
    found = list(_posteriors(duels, [spread for _, spread in prior.spreads()]))
    modes = np.concatenate([part.modes for part in found])
    covariances = [one for part in found for one in part.covariances]
    logs = np.concatenate([part.log_evidence for part in found])
    logs -= np.square([deviate for deviate, _ in prior.spreads()]) / 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    gaps = []
    for place in np.flatnonzero(weights >= NEGLIGIBLE_SPREAD).tolist():
        mode, covariance = modes[place], covariances[place]
        across = covariance[np.ix_(theirs, theirs)] + covariance[mine, mine]
        across -= covariance[theirs, mine][:, None] + covariance[theirs, mine][None, :]
        gaps.append(_NormalGaps(float(weights[place]), mode[theirs] - mode[mine], across))
    return Gaps(tuple(gaps))


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


def _posteriors(duels: _Duels, spreads: Sequence[float]) -> Iterator[_Posteriors]:
    """Yield the posteriors of all spreads, as many at once as fit into little memory."""
    import numpy as np

    at_once = max(1, NUMBERS_AT_ONCE // duels.size**2)
    mode = np.zeros(duels.size)
    for begin in range(0, len(spreads), at_once):
        part = _modes(duels, np.asarray(spreads[begin : begin + at_once]), mode)
        mode = part.modes[-1]
        yield part


def _modes(duels: _Duels, spreads: Floats, begin: Floats) -> _Posteriors:
    """Find the modes by Newton's method, beginning at strengths that are near, and the logarithms of the duels' likelihood under each prior, but for a constant."""
    import numpy as np

    strengths = np.tile(begin, (len(spreads), 1))
    precisions = (1 / spreads**2)[:, None]
    for _ in range(STEPS):
        gradients, curvatures = _derivatives(duels, strengths, precisions)
        steps = np.linalg.solve(curvatures, gradients[:, :, None])[:, :, 0]
        longest = np.abs(steps).max(axis=1, keepdims=True)
        strengths = strengths + steps * np.minimum(1.0, 4.0 / np.maximum(longest, 1e-300))
        if longest.max() < TOLERANCE:
            break
    _, curvatures = _derivatives(duels, strengths, precisions)
    logits = strengths[:, duels.first] - strengths[:, duels.second]
    logs = duels.won * logits - duels.held * np.logaddexp(0, logits)
    heights = logs.sum(axis=1) / duels.decided
    heights -= (precisions * strengths**2).sum(axis=1) / 2
    _, log_determinants = np.linalg.slogdet(curvatures)
    evidence = heights - duels.size * np.log(spreads) - log_determinants / 2
    covariances = np.asarray(np.linalg.inv(curvatures), dtype=np.float64)
    return _Posteriors(strengths, covariances, np.asarray(evidence, dtype=np.float64))


def _derivatives(duels: _Duels, strengths: Floats, precisions: Floats) -> tuple[Floats, Floats]:
    """Return the gradients of the log posteriors, and minus their second derivatives; a row for each prior."""
    import numpy as np

    shape = (len(strengths), duels.size, duels.size)
    chances = 1 / (1 + np.exp(strengths[:, duels.second] - strengths[:, duels.first]))
    surprise, between = np.zeros(shape), np.zeros(shape)
    surprise[:, duels.first, duels.second] = (duels.won - duels.held * chances) / duels.decided
    between[:, duels.first, duels.second] = duels.held * chances * (1 - chances) / duels.decided
    between = between + between.transpose(0, 2, 1)
    gradients = surprise.sum(axis=2) - surprise.sum(axis=1) - precisions * strengths
    places = np.arange(duels.size)
    curvatures = -between
    curvatures[:, places, places] += between.sum(axis=2) + precisions
    return gradients, curvatures


def _log_odds(margin: float) -> float:
    """Return the difference of two strengths of which the weaker one is preferred with a chance of a half less the margin."""
    return math.log((0.5 + margin) / (0.5 - margin))


@lru_cache(maxsize=64)
def _draws(size: int) -> Floats:
    import numpy as np

    return np.random.default_rng(1).standard_normal((DRAWS, size))
