"""Estimates strengths from thumbs and duels together, and what the replies' style adds.

In a duel one user compared two replies to the same words. With x what differs in style, a less b, the model is

    P(a beats b) = 1 / (1 + exp(-(θa - θb + β·x)))

and a tie, or two bad replies, is half a win for each, as in ranking/strengths/bradley_terry.py, whose thumbs are the other part of the same
likelihood. Davidson's and Rao and Kupper's models have a parameter for ties; the sum of wins and half ties is what Davidson's takes
of the votes too, and the sandwich makes the errors right whatever share of duels is tied. Without style terms the duels are
whole numbers of wins by pair, so a million cost no more than reading them; with terms each Newton step goes through them.

Errors are H⁻¹MH⁻¹ with M summed over users, thumbs and duels of one user together. The terms have a weak prior, as if of mean 0 and
variance 1: so they are finite when all replies are alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guanaco_server.leaderboard.ranking.strengths.bradley_terry import (
    CHUNK_PAIRS,
    PRIOR,
    STEPS,
    TOLERANCE,
    CodedVotes,
    Strengths,
    derivatives,
    logistic,
    wins_of,
)

if TYPE_CHECKING:
    from guanaco_server.leaderboard.ranking.strengths.bradley_terry import Codes, Floats

RIDGE = 1.0  # the precision of the terms' prior


@dataclass(frozen=True)
class CodedDuels:
    """Duels in columns, a row for each.

    Attributes:
        users: The users' indexes; one who also voted by thumbs has the place of those votes.
        first: The submissions on side a, by index.
        second: The submissions on side b.
        outcomes: 1 where a won, 0 where b did, a half otherwise.
        weights: The comparisons that each duel counts as.
        terms: What differs in style, a less b, with a column for each term.
    """

    users: Codes
    first: Codes
    second: Codes
    outcomes: Floats
    weights: Floats
    terms: Floats


@dataclass(frozen=True)
class _Scores:
    """Entries of the users' score vectors: of which user, for which parameter, how much."""

    users: Codes
    parameters: Codes
    values: Floats


def fit(
    votes: Sequence[CodedVotes],
    size: int,
    duels: CodedDuels,
    prior: float = PRIOR,
    ridge: float = RIDGE,
) -> Strengths:
    """Fit the strengths of ``size`` submissions, and the effects of the terms.

    Args:
        votes: Each user's thumbs, in the order that ``duels.users`` refers to.
        size: How many submissions there are.
        duels: The duels.
        prior: Comparisons with an average submission.
        ridge: The precision of the terms' prior.
    """
    import numpy as np

    groups = users_by_length(votes)
    thumbs = wins_of([codes for _, codes in groups], size)
    duelled = wins_of_duels(duels, size)
    values, curvature = maximum(thumbs, duelled, duels, prior, ridge)
    scores = _summed([*_of_thumbs(groups, values[:size]), *_of_duels(duels, values, size)])
    meat = _outer_products(scores, len(values))
    meat[:size, :size] += np.eye(size) * (prior / 4)
    inverse = np.linalg.inv(curvature)
    covariance = inverse @ meat @ inverse
    compared = (thumbs + thumbs.T + duelled + duelled.T).sum(axis=1)
    return _centred(values, covariance, compared)


def no_duels() -> CodedDuels:
    """Return an empty table."""
    import numpy as np

    codes, numbers = np.zeros(0, dtype=np.int64), np.zeros(0)
    return CodedDuels(codes, codes, codes, numbers, numbers, np.zeros((0, 0)))


def weights_of(users: Codes, first: Codes, second: Codes) -> Floats:
    """Return the weight of each duel: those of one user on the same two submissions weigh one together."""
    which, shares = pairs_of_users(users, first, second)
    found: Floats = 1 / shares[which]
    return found


def without(duels: CodedDuels, gone: Collection[int]) -> CodedDuels:
    """Return the duels without those in some rows; what is left of a user's on a pair weighs one again."""
    import numpy as np

    kept = np.ones(len(duels.users), dtype=bool)
    kept[list(gone)] = False
    users, first, second = duels.users[kept], duels.first[kept], duels.second[kept]
    weights = weights_of(users, first, second)
    return CodedDuels(users, first, second, duels.outcomes[kept], weights, duels.terms[kept])


def pairs_of_users(users: Codes, first: Codes, second: Codes) -> tuple[Codes, Codes]:
    """Number the pairs of each user; return the number of each duel's, and how many duels each has."""
    import numpy as np

    low, high = np.minimum(first, second), np.maximum(first, second)
    size = int(high.max(initial=0)) + 1
    _, which, held = np.unique(
        (users * size + low) * size + high, return_inverse=True, return_counts=True
    )
    return which.ravel(), held


def curvature_of(thumbs: Floats, duels: CodedDuels, values: Floats) -> Floats:
    """Return minus the second derivative at these strengths and effects; ``thumbs`` are the wins by thumbs."""
    size = len(thumbs)
    by_pair = thumbs if duels.terms.shape[1] else thumbs + wins_of_duels(duels, size)
    return _derivatives(values, size, by_pair, duels, PRIOR, RIDGE)[1]


def derivatives_of(duels: CodedDuels, values: Floats, size: int) -> tuple[Floats, Floats]:
    """Return what comparisons add to the gradient and to minus the second derivative; weights below 0 take away."""
    import numpy as np

    has_terms = duels.terms.shape[1] > 0
    by_pair = np.zeros((size, size)) if has_terms else wins_of_duels(duels, size)
    return _derivatives(values, size, by_pair, duels, 0.0, 0.0)


def wins_of_duels(duels: CodedDuels, size: int) -> Floats:
    """Return the weight with which each submission (row) has beaten each other (column) in duels."""
    won = _pairwise(duels, size, duels.weights * duels.outcomes)
    return won + _pairwise(duels, size, duels.weights * (1 - duels.outcomes)).T


def maximum(
    thumbs: Floats, duelled: Floats, duels: CodedDuels, prior: float, ridge: float
) -> tuple[Floats, Floats]:
    """Return the strengths and effects of the greatest likelihood, and minus its second derivative there."""
    import numpy as np

    size, columns = len(thumbs), duels.terms.shape[1]
    values = np.zeros(size + columns)
    by_pair = thumbs if columns else thumbs + duelled
    for _ in range(STEPS):
        gradient, curvature = _derivatives(values, size, by_pair, duels, prior, ridge)
        if np.abs(gradient).max(initial=0.0) < TOLERANCE * max(1.0, float(len(duels.weights))):
            break
        step = np.linalg.solve(curvature, gradient)
        values = values + step * min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-300))
    return values, _derivatives(values, size, by_pair, duels, prior, ridge)[1]


def _centred(values: Floats, covariance: Floats, compared: Floats) -> Strengths:
    """Return the strengths against the mean of those that were compared, and the terms as they are."""
    import numpy as np

    size = len(compared)
    strengths, theirs = values[:size], covariance[:size, :size]
    centre = (compared > 0) / max(1, int(np.count_nonzero(compared)))
    with_centre = theirs @ centre
    variance = np.diag(theirs) - 2 * with_centre + centre @ with_centre
    return Strengths(
        values=(strengths - centre @ strengths).tolist(),
        errors=np.sqrt(np.maximum(variance, 0.0)).tolist(),
        compared=compared.tolist(),
        effects=values[size:].tolist(),
        effect_errors=np.sqrt(np.maximum(np.diag(covariance)[size:], 0.0)).tolist(),
    )


def _pairwise(duels: CodedDuels, size: int, amounts: Floats) -> Floats:
    """Sum amounts by the submissions of sides a (row) and b (column)."""
    import numpy as np

    cells = duels.first * size + duels.second
    found: Floats = np.zeros(size * size)
    found += np.bincount(cells, weights=amounts, minlength=size * size)
    return found.reshape(size, size)


def _derivatives(
    values: Floats, size: int, by_pair: Floats, duels: CodedDuels, prior: float, ridge: float
) -> tuple[Floats, Floats]:
    """Return the gradient of the log likelihood with its priors, and minus its second derivative.

    ``by_pair`` has all comparisons that no term says more about.
    """
    import numpy as np

    total, columns = len(values), len(values) - size
    gradient, curvature = np.zeros(total), np.zeros((total, total))
    gradient[:size], curvature[:size, :size] = derivatives(
        values[:size], by_pair, by_pair + by_pair.T, prior
    )
    if not columns:
        return gradient, curvature
    chances = chances_of(duels, values, size)
    surprise = duels.weights * (duels.outcomes - chances)
    spread = duels.weights * chances * (1 - chances)
    gradient[:size] += _differences(duels, size, surprise)
    gradient[size:] = duels.terms.T @ surprise - ridge * values[size:]
    between = _pairwise(duels, size, spread)
    between += between.T
    curvature[:size, :size] += np.diag(between.sum(axis=1)) - between
    weighted = spread[:, None] * duels.terms
    for column in range(columns):
        across = _differences(duels, size, weighted[:, column])
        curvature[:size, size + column] = curvature[size + column, :size] = across
    curvature[size:, size:] = duels.terms.T @ weighted + ridge * np.eye(columns)
    return gradient, curvature


def chances_of(duels: CodedDuels, values: Floats, size: int) -> Floats:
    logits = values[duels.first] - values[duels.second]
    if duels.terms.shape[1]:
        logits = logits + duels.terms @ values[size:]
    found: Floats = logistic(logits)
    return found


def _differences(duels: CodedDuels, size: int, amounts: Floats) -> Floats:
    """Sum amounts by the submission on side a, less those by the one on side b."""
    import numpy as np

    found: Floats = np.zeros(size)
    found += np.bincount(duels.first, weights=amounts, minlength=size)
    found -= np.bincount(duels.second, weights=amounts, minlength=size)
    return found


def users_by_length(votes: Sequence[CodedVotes], least: int = 2) -> list[tuple[Codes, Codes]]:
    """Return users with ``least`` votes and more, and their votes, for each number of votes."""
    import numpy as np

    found: defaultdict[int, list[int]] = defaultdict(list)
    for user, coded in enumerate(votes):
        if len(coded) >= least:
            found[len(coded)].append(user)
    return [
        (np.asarray(users), np.asarray([votes[user] for user in users], dtype=np.int64))
        for _, users in sorted(found.items())
    ]


def _of_thumbs(groups: Sequence[tuple[Codes, Codes]], values: Floats) -> Iterator[_Scores]:
    import numpy as np

    for users, codes in groups:
        length = codes.shape[1]
        step = max(1, CHUNK_PAIRS // (length * length))
        for start in range(0, len(codes), step):
            ids, ups = codes[start : start + step] >> 1, codes[start : start + step] & 1
            expected = logistic(values[ids][:, :, None] - values[ids][:, None, :]).sum(axis=2)
            outcomes = (length * (1 + ups) - ups.sum(axis=1, keepdims=True)) / 2
            amounts = 2 / (length * (length - 1)) * (outcomes - expected)
            yield _Scores(
                np.repeat(users[start : start + step], length), ids.ravel(), amounts.ravel()
            )


def _of_duels(duels: CodedDuels, values: Floats, size: int) -> Iterator[_Scores]:
    import numpy as np

    surprise = duels.weights * (duels.outcomes - chances_of(duels, values, size))
    yield _Scores(duels.users, duels.first, surprise)
    yield _Scores(duels.users, duels.second, -surprise)
    for column in range(duels.terms.shape[1]):
        places = np.full(len(surprise), size + column)
        yield _Scores(duels.users, places, surprise * duels.terms[:, column])


def _summed(parts: Sequence[_Scores]) -> _Scores:
    """Sum the entries of the same user and parameter; users come in order."""
    import numpy as np

    users = np.concatenate([one.users for one in parts])
    parameters = np.concatenate([one.parameters for one in parts])
    values = np.concatenate([one.values for one in parts])
    stride = int(parameters.max(initial=0)) + 1
    keys = users * stride + parameters
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(values[order], begins) if len(begins) else values
    return _Scores(keys[begins] // stride, keys[begins] % stride, sums)


def _outer_products(scores: _Scores, size: int) -> Floats:
    """Sum the outer products of the users' score vectors, those with as many entries together."""
    import numpy as np

    begins = np.flatnonzero(np.diff(scores.users, prepend=-1))
    lengths = np.diff(begins, append=len(scores.users))
    found = np.zeros(size * size)
    for length in np.unique(lengths):
        starts = begins[lengths == length]
        step = max(1, CHUNK_PAIRS // int(length * length))
        for at in range(0, len(starts), step):
            places = starts[at : at + step, None] + np.arange(length)
            parameters, values = scores.parameters[places], scores.values[places]
            cells = parameters[:, :, None] * size + parameters[:, None, :]
            products = values[:, :, None] * values[:, None, :]
            found += np.bincount(cells.ravel(), weights=products.ravel(), minlength=size * size)
    return found.reshape(size, size)
