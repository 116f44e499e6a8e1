"""Computes the sums over pairs that a continued fit needs, in a fraction of the time of bradley_terry.py.

The chance of i against j is o_i / (o_i + o_j) with the odds o = exp(θ): a division a pair in place of an exponential. Each pair is looked
at once, since the other side's chance is what is left of 1, and large arrays are written again rather than made again.
The results are those of bradley_terry.py but for rounding. Seasons are fitted there, for their last digit must stay as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from guanaco_server.leaderboard.ranking.strengths.bradley_terry import CHUNK_PAIRS, weight_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Codes: TypeAlias = NDArray[np.int64]


class PairSums:
    """The likelihood of comparisons, for as many strengths as one likes.

    Args:
        wins: The weight with which each submission (row) has beaten each other (column).
        prior: Comparisons of each with an average submission.
    """

    def __init__(self, wins: Floats, prior: float) -> None:
        import numpy as np

        self.comparisons: Floats = wins + wins.T
        self._won = wins.sum(axis=1)
        self._prior = prior
        self._odds_together = np.empty_like(wins)
        self._shares = np.empty_like(wins)

    def gradient(self, values: Floats) -> Floats:
        """Return the gradient of the log likelihood with its prior."""
        import numpy as np

        odds = np.exp(values)
        found: Floats = (
            self._won
            - odds * self._share(odds).sum(axis=1)
            + self._prior * (0.5 - odds / (1 + odds))
        )
        return found

    def inverse_curvature(self, values: Floats) -> Floats:
        """Return the inverse of minus the second derivative."""
        import numpy as np

        odds = np.exp(values)
        weights = self._share(odds)
        weights /= self._odds_together
        weights *= odds[:, None]
        weights *= odds[None, :]
        diagonal = weights.sum(axis=1) + self._prior * odds / (1 + odds) ** 2
        np.negative(weights, out=weights)
        weights[np.diag_indices_from(weights)] += diagonal
        return np.asarray(np.linalg.inv(weights), dtype=np.float64)

    def _share(self, odds: Floats) -> Floats:
        """Return the comparisons of each pair, divided by the sum of the two odds; the array is written again by the next call."""
        import numpy as np

        np.add(odds[:, None], odds[None, :], out=self._odds_together)
        np.divide(self.comparisons, self._odds_together, out=self._shares)
        return self._shares


def meat_of(groups: list[Codes], values: Floats, size: int, prior: float) -> Floats:
    """Sum the outer products of the users' score vectors, as bradley_terry.py does."""
    import numpy as np

    odds = np.exp(values)
    begins = np.arange(size) * np.arange(-1, size - 1) // 2  # of each row below the diagonal
    below, diagonal = np.zeros(size * (size - 1) // 2), np.zeros(size)
    for codes in groups:
        length = codes.shape[1]
        step = max(1, CHUNK_PAIRS * 2 // (length * (length - 1)))
        for start in range(0, len(codes), step):
            part = np.ascontiguousarray(codes[start : start + step].T)
            ids = part >> 1
            scores = _scores(part, odds) * weight_of(codes)
            _add_products(ids, begins[ids], scores, below)
            diagonal += np.bincount(ids.ravel(), weights=(scores * scores).ravel(), minlength=size)
    found = np.zeros((size, size))
    for row in range(1, size):
        found[row, :row] = below[begins[row] : begins[row] + row]
    found += found.T
    found[np.diag_indices(size)] = diagonal + prior / 4
    return found


def _scores(codes: Codes, odds: Floats) -> Floats:
    """Return what each vote's submission (row) of each user (column) won beyond what was expected, unweighted."""
    import numpy as np

    length, ups, theirs = len(codes), codes & 1, odds[codes >> 1]
    places = np.arange(length)[:, None]
    scores: Floats = (length * (1 + ups) - ups.sum(axis=0) - 1) / 2 - places
    for one in range(length - 1):
        chances = theirs[one] / (theirs[one] + theirs[one + 1 :])
        scores[one] -= chances.sum(axis=0)
        scores[one + 1 :] += chances  # each of these was taken as 1 above
    return scores


def _add_products(ids: Codes, begins: Codes, scores: Floats, below: Floats) -> None:
    """Add the product of each pair of a user's scores to its cell below the diagonal; a user's ids ascend."""
    import numpy as np

    length, users = ids.shape
    cells = np.empty((length * (length - 1) // 2, users), dtype=np.int64)
    products = np.empty(cells.shape)
    end = 0
    for one in range(length - 1):
        begin, end = end, end + length - 1 - one
        np.add(begins[one + 1 :], ids[one], out=cells[begin:end])
        np.multiply(scores[one + 1 :], scores[one], out=products[begin:end])
    below += np.bincount(cells.ravel(), weights=products.ravel(), minlength=len(below))
