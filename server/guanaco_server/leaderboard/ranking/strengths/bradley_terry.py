"""Estimates the strengths of submissions from users who voted on several of them.

If one user voted on two submissions, the one with thumbs up beat the one with thumbs down; both up or both down
is half a win for each. Each user's comparisons together weigh one, so a user who votes a lot counts as much as one
who compares two. The model is P(i beats j) = 1 / (1 + exp(θj - θi)).

R. A. Bradley and M. E. Terry, "Rank analysis of incomplete block designs", Biometrika 39 (1952); the likelihood with a
prior, maximized by Newton's method, is strictly concave. The prior is one comparison of each submission with an average
one (θ = 0), half won and half lost: so the strength of a submission that won or lost all stays finite (D. R. Hunter, "MM algorithms for
generalized Bradley-Terry models", Annals of Statistics 32 (2004), assumption 1), and groups of submissions that no
user connects are each set around the average, with errors that say so. Errors are the sandwich H⁻¹MH⁻¹ with M summed over users, since one
user's comparisons depend on each other (H. White, "Maximum likelihood estimation of misspecified models",
Econometrica 50 (1982)).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Codes: TypeAlias = NDArray[np.int64]

CodedVotes = tuple[int, ...]  # one user's votes: 2 · submission's index, plus 1 for thumbs up

PRIOR = 1.0  # comparisons with an average submission
STEPS = 60
TOLERANCE = 1e-10  # of the gradient, in comparisons
CHUNK_PAIRS = 500_000  # pairs in memory at once: 4 MB an array, a third of the time of 16 MB


@dataclass(frozen=True)
class Strengths:
    """The fitted strengths, by the submissions' index.

    Attributes:
        values: Log odds against the mean of the submissions that were compared.
        errors: The standard errors of these differences.
        compared: The weight of the users who compared the submission with another.
        effects: What the terms of duels' style add to the log odds (ranking/strengths/comparisons.py).
        effect_errors: The standard errors of these.
    """

    values: list[float]
    errors: list[float]
    compared: list[float]
    effects: list[float] = field(default_factory=list)
    effect_errors: list[float] = field(default_factory=list)


def fit(
    votes: Iterable[CodedVotes], size: int, prior: float = PRIOR, start: Sequence[float] = ()
) -> Strengths:
    """Fit the strengths of ``size`` submissions.

    The same votes give the same strengths in any order: wins are whole numbers until they are weighted, and the users
    are sorted before their scores are summed.

    Args:
        votes: Each user's votes.
        size: How many submissions there are.
        prior: Comparisons with an average submission.
        start: Earlier ``values`` of the first submissions, which save most of the steps. The strengths then are the same
            to TOLERANCE, and not to the last digit.
    """
    import numpy as np

    groups = by_length(votes)
    wins = wins_of(groups, size)
    comparisons = wins + wins.T
    values = np.zeros(size)
    values[: len(start)] = start
    for _ in range(STEPS):
        gradient, curvature = derivatives(values, wins, comparisons, prior)
        if np.abs(gradient).max(initial=0.0) < TOLERANCE:
            break
        step = np.linalg.solve(curvature, gradient)
        values = values + step * min(1.0, 4.0 / max(np.abs(step).max(), 1e-300))
    _, curvature = derivatives(values, wins, comparisons, prior)
    inverse = np.linalg.inv(curvature)
    covariance = inverse @ meat_of(groups, values, size, prior) @ inverse
    compared = comparisons.sum(axis=1)
    centre = (compared > 0) / max(1, np.count_nonzero(compared))
    with_centre = covariance @ centre
    variance = np.diag(covariance) - 2 * with_centre + centre @ with_centre
    return Strengths(
        values=(values - centre @ values).tolist(),
        errors=np.sqrt(np.maximum(variance, 0.0)).tolist(),
        compared=compared.tolist(),
    )


def removals(codes: Codes, values: Floats, pull: Floats) -> Floats:
    """Return pull · (s' - s) for each vote, with s the score vector of its user and s' the one without the vote."""
    import numpy as np

    length = codes.shape[1]
    if length < 2:
        return np.zeros(codes.shape)
    ids, ups = codes >> 1, codes & 1
    own, pulls = values[ids], pull[ids]
    surprise = (1 + ups[:, :, None] - ups[:, None, :]) / 2 - logistic(
        own[:, :, None] - own[:, None, :]
    )
    scores = surprise.sum(axis=2)
    whole = (pulls * scores).sum(axis=1, keepdims=True)
    left = whole - pulls * scores - (pulls[:, :, None] * surprise).sum(axis=1)
    weight = 2 / ((length - 1) * (length - 2)) if length > 2 else 0.0
    return np.asarray(weight * left - weight_of(codes) * whole)


def chances_against_field(strengths: Strengths, indexes: list[int]) -> list[tuple[float, float]]:
    """Return each submission's mean chance to beat another of them, and its standard error (delta method, others held)."""
    import numpy as np

    values = np.asarray(strengths.values)[indexes]
    chances = logistic(values[:, None] - values[None, :])
    np.fill_diagonal(chances, 0.0)
    others = max(1, len(indexes) - 1)
    slopes = (chances * (1 - chances)).sum(axis=1) / others
    errors = np.asarray(strengths.errors)[indexes] * slopes
    means = chances.sum(axis=1) / others if len(indexes) > 1 else np.full(len(indexes), 0.5)
    return list(zip(means.tolist(), errors.tolist(), strict=True))


def by_length(votes: Iterable[CodedVotes]) -> list[Codes]:
    """Return sorted arrays of the users with two votes and more, one array for each number of votes."""
    import numpy as np

    found: defaultdict[int, list[CodedVotes]] = defaultdict(list)
    for coded in votes:
        if len(coded) > 1:
            found[len(coded)].append(coded)
    return [np.asarray(sorted(found[length]), dtype=np.int64) for length in sorted(found)]


def wins_of(groups: list[Codes], size: int) -> Floats:
    """Return the weight with which each submission (row) has beaten each other (column)."""
    import numpy as np

    wins = np.zeros((size, size))
    for codes in groups:
        twice = np.zeros(size * size)  # whole numbers, exact as floats up to 2^53
        for ids, ups in chunks(codes):
            outcome = 1 + ups[:, :, None] - ups[:, None, :]
            twice += np.bincount(
                cells_of(ids, size).ravel(), weights=outcome.ravel(), minlength=size * size
            )
        wins += twice.reshape(size, size) * (weight_of(codes) / 2)
    np.fill_diagonal(wins, 0.0)
    return wins


def derivatives(
    values: Floats, wins: Floats, comparisons: Floats, prior: float
) -> tuple[Floats, Floats]:
    """Return the gradient of the log likelihood with its prior, and minus its second derivative."""
    import numpy as np

    chances = logistic(values[:, None] - values[None, :])
    alone = logistic(values)
    gradient = (wins - comparisons * chances).sum(axis=1) + prior * (0.5 - alone)
    weights = comparisons * chances * (1 - chances)
    curvature = np.diag(weights.sum(axis=1) + prior * alone * (1 - alone)) - weights
    return gradient, curvature


def gradient_of(values: Floats, wins: Floats, comparisons: Floats, prior: float) -> Floats:
    """Return the gradient of the log likelihood with its prior."""
    chances = logistic(values[:, None] - values[None, :])
    found: Floats = (wins - comparisons * chances).sum(axis=1) + prior * (0.5 - logistic(values))
    return found


def meat_of(groups: list[Codes], values: Floats, size: int, prior: float) -> Floats:
    """Sum the outer products of the users' score vectors; the prior counts as one decided comparison."""
    import numpy as np

    found = np.zeros(size * size)
    chances = logistic(
        values[:, None] - values[None, :]
    ).ravel()  # looked up below: a quarter of the time
    for codes in groups:
        weight, length = weight_of(codes), codes.shape[1]
        for ids, ups in chunks(codes):
            cells = cells_of(ids, size)
            outcomes = (length * (1 + ups) - ups.sum(axis=1, keepdims=True)) / 2
            scores = weight * (outcomes - chances[cells].sum(axis=2))  # with itself: ½ - ½
            products = scores[:, :, None] * scores[:, None, :]
            found += np.bincount(cells.ravel(), weights=products.ravel(), minlength=size * size)
    return found.reshape(size, size) + np.eye(size) * (prior / 4)


def chunks(codes: Codes) -> Iterator[tuple[Codes, Codes]]:
    """Yield ids and thumbs up (0 or 1) of as many users at once as have CHUNK_PAIRS pairs."""
    length = codes.shape[1]
    step = max(1, CHUNK_PAIRS // (length * length))
    for start in range(0, len(codes), step):
        part = codes[start : start + step]
        yield part >> 1, part & 1


def cells_of(ids: Codes, size: int) -> Codes:
    return ids[:, :, None] * size + ids[:, None, :]


def weight_of(codes: Codes) -> float:
    length = int(codes.shape[1])
    return 2 / (length * (length - 1))


def logistic(x: Any) -> Any:
    import numpy as np

    return 1 / (1 + np.exp(-x))
