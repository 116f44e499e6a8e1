"""Fits strengths again after some users' votes have changed, in a fraction of what a fit of all votes takes.

Three things are kept from one fit to the next: the votes as arrays, the comparisons that they add up to, and the inverse of the curvature.
The last one is a little old when the next fit begins, and only chooses the steps. The result is the maximum all the same, and the errors
are those at the maximum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from guanaco_server.leaderboard.ranking.strengths import bradley_terry
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import (
    PRIOR,
    TOLERANCE,
    CodedVotes,
    Strengths,
)
from guanaco_server.leaderboard.ranking.strengths.pair_sums import PairSums, meat_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guanaco_server.leaderboard.ranking.rules import VotesByUser

    Floats: TypeAlias = NDArray[np.float64]
    Codes: TypeAlias = NDArray[np.int64]

STEPS = 60
SLOWEST = 0.5  # of the gradient may be left after a step; otherwise the inverse is too old
NOTHING = 1e-9  # comparisons: below any user's weight, above what rounding leaves of votes that were taken back


class ContinuedFit:
    """Fits the votes of one competition, as often as they change.

    The first fit is of all votes. Each further one asks ``VotesByUser`` for the changes since the last, so one table has one
    continued fit.
    """

    def __init__(self, votes: VotesByUser) -> None:
        self._votes = votes
        self._groups = VoteGroups()
        self._wins: Floats | None = None
        self._values: Floats | None = None
        self._inverse: Floats | None = None

    def __call__(self, by_user: Iterable[CodedVotes], size: int) -> Strengths:
        """Fit the strengths; ``by_user`` is not read, since the votes in memory are the same."""
        import numpy as np

        sums = PairSums(self._count(size), PRIOR)
        values, inverse = self._maximum(sums, size)
        meat = meat_of(self._groups.arrays(), values, size, PRIOR)
        self._values, self._inverse = values, inverse
        compared = sums.comparisons.sum(axis=1)
        centre = (compared > 0) / max(1, np.count_nonzero(compared))
        half = inverse @ meat
        variance = (half * inverse).sum(axis=1)  # the diagonal of H⁻¹MH⁻¹
        with_centre = half @ (inverse @ centre)
        variance = variance - 2 * with_centre + centre @ with_centre
        return Strengths(
            values=(values - centre @ values).tolist(),
            errors=np.sqrt(np.maximum(variance, 0.0)).tolist(),
            compared=compared.tolist(),
        )

    def _count(self, size: int) -> Floats:
        """Return the weight with which each submission (row) has beaten each other (column)."""
        import numpy as np

        changes = self._votes.take_changes()
        if self._wins is None:
            self._groups = VoteGroups()
            for user, votes in self._votes.comparing_votes():
                self._groups.replace(user, (), votes)
            self._wins = bradley_terry.wins_of(self._groups.arrays(), size)
            return self._wins
        if len(self._wins) < size:
            more = size - len(self._wins)
            self._wins = np.pad(self._wins, (0, more))
            self._values = np.pad(self._values, (0, more)) if self._values is not None else None
            self._inverse = None
        for user, before, now in changes:
            self._groups.replace(user, before, now)
        old, new = (changed for _, changed, _ in changes), (changed for *_, changed in changes)
        self._wins += _wins_of_few(new, size) - _wins_of_few(old, size)
        self._wins[np.abs(self._wins) < NOTHING] = 0.0
        return self._wins

    def _maximum(self, sums: PairSums, size: int) -> tuple[Floats, Floats]:
        """Return the strengths that maximize the likelihood, and the inverse of the curvature there."""
        import numpy as np

        values = np.zeros(size) if self._values is None else self._values
        inverse, before = self._inverse, np.inf
        for _ in range(STEPS):
            gradient = sums.gradient(values)
            most = float(np.abs(gradient).max(initial=0.0))
            if most < TOLERANCE:
                break
            if inverse is None or most > SLOWEST * before:
                inverse = sums.inverse_curvature(values)
            step, before = inverse @ gradient, most
            values = values + step * min(1.0, 4.0 / max(np.abs(step).max(), 1e-300))
        return values, sums.inverse_curvature(values)


class VoteGroups:
    """Users' votes as arrays, one for each number of votes, in which one user's votes can be replaced."""

    def __init__(self) -> None:
        self._groups: defaultdict[int, _Group] = defaultdict(_Group)

    def replace(self, user: str, before: CodedVotes, now: CodedVotes) -> None:
        """Replace a user's votes; users with fewer than two compare nothing."""
        if len(before) > 1:
            self._groups[len(before)].remove(user)
        if len(now) > 1:
            self._groups[len(now)].add(user, now)

    def arrays(self) -> list[Codes]:
        """Return the votes of all users, those with the fewest first."""
        return [self._groups[length].array() for length in sorted(self._groups)]


class _Group:
    """Users who have the same number of votes. Rows that were added are made an array when it is read."""

    def __init__(self) -> None:
        self._users: list[str] = []
        self._places: dict[str, int] = {}
        self._rows: list[CodedVotes] = []
        self._changed: set[int] = set()
        self._array: Codes | None = None

    def add(self, user: str, votes: CodedVotes) -> None:
        self._places[user] = len(self._users)
        self._users.append(user)
        self._rows.append(votes)
        self._changed.add(self._places[user])

    def remove(self, user: str) -> None:
        """Put the last user into the place of the one who leaves."""
        place, last = self._places.pop(user), self._users.pop()
        votes = self._rows.pop()
        if last != user:
            self._users[place], self._rows[place] = last, votes
            self._places[last] = place
            self._changed.add(place)

    def array(self) -> Codes:
        import numpy as np

        size = len(self._rows)
        if self._array is None:
            self._array = np.asarray(self._rows, dtype=np.int64).reshape(size, -1)
        else:
            changed = sorted(place for place in self._changed if place < size)
            grown = np.empty((size, self._array.shape[1]), dtype=np.int64)
            kept = min(size, len(self._array))
            grown[:kept] = self._array[:kept]
            if changed:
                grown[changed] = [self._rows[place] for place in changed]
            self._array = grown
        self._changed.clear()
        return self._array


def _wins_of_few(votes: Iterable[CodedVotes], size: int) -> Floats:
    """Return what `bradley_terry.wins_of` does, with one sum for users of any number of votes."""
    import numpy as np

    cells, weights = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for codes in bradley_terry.by_length(votes):
        outcome = 1 + (codes & 1)[:, :, None] - (codes & 1)[:, None, :]
        cells.append(bradley_terry.cells_of(codes >> 1, size).ravel())
        weights.append(outcome.ravel() * (bradley_terry.weight_of(codes) / 2))
    found: Floats = np.bincount(
        np.concatenate(cells), weights=np.concatenate(weights), minlength=size * size
    ).astype(np.float64)
    found = found.reshape(size, size)
    np.fill_diagonal(found, 0.0)
    return found
