"""Estimates what strengths would be without some of the votes.

The influence of one vote on a figure is what its removal alone changes: pull · (s' - s), with s its user's score vector, s' the one without the
vote, and pull = H⁻¹ · (how the figure changes with each strength). One inverse of the curvature H serves all votes and all figures.

Without a set of votes the strengths are one Newton step away, with the curvature of the votes that are left:

    θ' = θ + (H + D)⁻¹ g,   where the set changes the curvature by D and the gradient by g

D is 0 but for the submissions T that the set compares. With G = H⁻¹[T, T] and K = (1 + D G)⁻¹ D (M. A. Woodbury, 1950),

    (H + D)⁻¹ = H⁻¹ - H⁻¹[:, T] K H⁻¹[T, :]

so a set costs what it touches. The error of a strength is taken to grow as the root of (e - c)ᵀ H⁻¹ (e - c) does, with c the mean of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from guanaco_server.leaderboard.ranking.strengths import bradley_terry, comparisons
from guanaco_server.leaderboard.ranking.strengths.bradley_terry import (
    CHUNK_PAIRS,
    CodedVotes,
    Strengths,
    weight_of,
    wins_of,
)
from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guanaco_server.leaderboard.ranking.strengths.bradley_terry import Codes, Floats

    Flags: TypeAlias = NDArray[np.bool_]

DUELS = -1  # in place of a group of users


@dataclass(frozen=True)
class Picks:
    """Single votes, a row each.

    Attributes:
        groups: The users with as many votes, by the group's index, or DUELS.
        rows: The user's row in that group, or the duel's.
        places: The vote's place among the user's; 0 for a duel.
    """

    groups: Codes
    rows: Codes
    places: Codes

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, chosen: Codes | slice) -> Picks:
        return Picks(self.groups[chosen], self.rows[chosen], self.places[chosen])


@dataclass(frozen=True)
class Change:
    """The changes that the removal of votes makes.

    Attributes:
        figure: The figure's change.
        growth: By what the error of each submission asked for is multiplied.
        compared: The change of the weight of the users who compared it.
    """

    figure: float
    growth: tuple[float, ...]
    compared: tuple[float, ...]


class VoteRemovals:
    """Takes votes away from one fit.

    Args:
        votes: Each user's votes.
        duels: The duels.
        fitted: The strengths that both give.
        least: Users with fewer votes are left out.
    """

    def __init__(
        self, votes: Sequence[CodedVotes], duels: CodedDuels, fitted: Strengths, least: int = 2
    ) -> None:
        import numpy as np

        self._size = len(fitted.values)
        self._values = np.asarray([*fitted.values, *fitted.effects])
        self._groups = [
            _IndexedGroup(users, codes, _Index(codes >> 1, self._size))
            for users, codes in comparisons.users_by_length(votes, least)
        ]
        self._duels = _IndexedDuels(duels, self._size)
        thumbs = wins_of([one.codes for one in self._groups if one.length > 1], self._size)
        curvature = comparisons.curvature_of(thumbs, duels, self._values)
        self.inverse: Floats = np.asarray(np.linalg.inv(curvature), dtype=np.float64)
        weights = np.asarray(fitted.compared)
        self._centre = (weights > 0) / max(1, int(np.count_nonzero(weights)))
        self._to_centre = self.inverse[:, : self._size] @ self._centre

    def influences(
        self, pull: Floats, submissions: Sequence[int], by_code: Floats | None = None
    ) -> tuple[Floats, Picks]:
        """Return what the removal of each vote that is compared with one on these submissions changes.

        Args:
            pull: How the figure changes with each entry of the score vector.
            submissions: By index.
            by_code: What the removal of a vote adds to that, by the vote's code.
        """
        import numpy as np

        found: list[tuple[Floats, Picks]] = []
        for place, group in enumerate(self._groups):
            users = group.index.rows(submissions)
            step = max(1, CHUNK_PAIRS // group.length**2)
            for start in range(0, len(users), step):
                part = users[start : start + step]
                codes = group.codes[part]
                changes = bradley_terry.removals(codes, self._values, pull)
                if by_code is not None:
                    changes = changes + by_code[codes]
                rows = np.repeat(part, group.length)
                places = np.tile(np.arange(group.length), len(part))
                found.append((changes.ravel(), Picks(np.full(len(rows), place), rows, places)))
        rows = self._duels.index.rows(submissions)
        changes = self._duels.influences(rows, self._values, pull, self._size)
        found.append((changes, Picks(np.full(len(rows), DUELS), rows, np.zeros_like(rows))))
        picks = [one for _, one in found]
        return np.concatenate([one for one, _ in found]), Picks(
            np.concatenate([one.groups for one in picks]),
            np.concatenate([one.rows for one in picks]),
            np.concatenate([one.places for one in picks]),
        )

    def change(self, removed: Picks, pull: Floats, submissions: Sequence[int]) -> Change:
        """Return what the removal of votes changes in a figure, and for these submissions."""
        import numpy as np

        changed = self._changed_comparisons(removed)
        ends, local = np.unique(
            np.concatenate([changed.first, changed.second]), return_inverse=True
        )
        local = local.reshape(2, -1)
        touched = np.concatenate([ends, np.arange(self._size, len(self._values))])
        gradient, curvature = comparisons.derivatives_of(
            CodedDuels(
                changed.users, local[0], local[1], changed.outcomes, changed.weights, changed.terms
            ),
            self._values[touched],
            len(ends),
        )
        inverse = self.inverse[np.ix_(touched, touched)]
        kept = np.linalg.solve(np.eye(len(touched)) + curvature @ inverse, curvature)
        step = gradient - kept @ (inverse @ gradient)
        weights = [
            changed.weights[(changed.first == one) | (changed.second == one)].sum()
            for one in submissions
        ]
        return Change(
            figure=float(pull[touched] @ step),
            growth=tuple(self._growth(one, touched, kept) for one in submissions),
            compared=tuple(float(weight) for weight in weights),
        )

    def are_spent(self, picks: Picks) -> Flags:
        """Tell which votes compare nothing once those before them are gone: the second one of a user with two."""
        import numpy as np

        found = np.zeros(len(picks), dtype=bool)
        for place, group in enumerate(self._groups):
            if group.length == 2:
                of_group = np.flatnonzero(picks.groups == place)
                _, firsts = np.unique(picks.rows[of_group], return_index=True)
                found[of_group] = True
                found[of_group[firsts]] = False
        return found

    def votes_of(self, picks: Picks) -> list[tuple[int, int]]:
        """Return the votes as (user's index or DUELS, place or the duel's row)."""
        rows = zip(picks.groups.tolist(), picks.rows.tolist(), picks.places.tolist(), strict=True)
        return [
            (DUELS, row) if group == DUELS else (int(self._groups[group].users[row]), place)
            for group, row, place in rows
        ]

    def codes_of(self, picks: Picks) -> list[int]:
        """Return the codes of the votes that are no duels."""
        rows = zip(picks.groups.tolist(), picks.rows.tolist(), picks.places.tolist(), strict=True)
        return [
            int(self._groups[group].codes[row, place])
            for group, row, place in rows
            if group != DUELS
        ]

    def _growth(self, submission: int, touched: Codes, kept: Floats) -> float:
        """Return by what a strength's error is multiplied."""
        towards = self.inverse[submission] - self._to_centre
        variance = towards[submission] - self._centre @ towards[: self._size]
        there = towards[touched]
        return float(max(0.0, 1 - there @ kept @ there / max(variance, 1e-300)) ** 0.5)

    def _changed_comparisons(self, removed: Picks) -> CodedDuels:
        """Return the comparisons whose weights change, with the changes as their weights."""
        import numpy as np

        columns = len(self._values) - self._size
        parts = [self._duels.changed(removed.rows[removed.groups == DUELS])]
        for place, group in enumerate(self._groups):
            is_of = removed.groups == place
            if group.length > 1 and is_of.any():
                parts.append(group.changed(removed.rows[is_of], removed.places[is_of], columns))
        return CodedDuels(
            users=np.concatenate([one.users for one in parts]),
            first=np.concatenate([one.first for one in parts]),
            second=np.concatenate([one.second for one in parts]),
            outcomes=np.concatenate([one.outcomes for one in parts]),
            weights=np.concatenate([one.weights for one in parts]),
            terms=np.concatenate([one.terms for one in parts]),
        )


class _Index:
    """Finds the rows in which a submission occurs."""

    def __init__(self, ids: Codes, size: int) -> None:
        import numpy as np

        order = np.argsort(ids, axis=None, kind="stable")
        self._rows = order // ids.shape[1]
        self._begins = np.searchsorted(ids.ravel()[order], np.arange(size + 1))

    def rows(self, submissions: Sequence[int]) -> Codes:
        import numpy as np

        ends = [(self._begins[one], self._begins[one + 1]) for one in submissions]
        found: Codes = np.unique(np.concatenate([self._rows[begin:end] for begin, end in ends]))
        return found


@dataclass(frozen=True)
class _IndexedGroup:
    """The users who have as many votes."""

    users: Codes
    codes: Codes
    index: _Index

    @property
    def length(self) -> int:
        return int(self.codes.shape[1])

    def changed(self, rows: Codes, places: Codes, columns: int) -> CodedDuels:
        """Return the comparisons of these users with what changes in their weights."""
        import numpy as np

        users, local = np.unique(rows, return_inverse=True)
        codes = self.codes[users]
        is_left = np.ones(codes.shape, dtype=bool)
        is_left[local, places] = False
        left = is_left.sum(axis=1)
        weights = np.where(left > 1, 2 / np.maximum(left * (left - 1), 1), 0.0)
        one, other = np.asarray(list(itertools.combinations(range(self.length), 2))).T
        ids, ups = codes >> 1, codes & 1
        changes = weights[:, None] * (is_left[:, one] & is_left[:, other]) - weight_of(codes)
        outcomes = (1 + ups[:, one] - ups[:, other]) / 2
        return CodedDuels(
            users=np.repeat(self.users[users], len(one)),
            first=ids[:, one].ravel(),
            second=ids[:, other].ravel(),
            outcomes=outcomes.ravel(),
            weights=changes.ravel(),
            terms=np.zeros((changes.size, columns)),
        )


class _IndexedDuels:
    """The duels, those of one user on the same two submissions together."""

    def __init__(self, duels: CodedDuels, size: int) -> None:
        import numpy as np

        self._duels = duels
        self.index = _Index(np.column_stack([duels.first, duels.second]), size)
        self._which, self._held = comparisons.pairs_of_users(duels.users, duels.first, duels.second)
        self._order = np.argsort(self._which, kind="stable")
        self._begins = np.cumsum(self._held) - self._held

    def influences(self, rows: Codes, values: Floats, pull: Floats, size: int) -> Floats:
        """Return pull · (s' - s) for each of these duels; all of a user on a pair are among them."""
        import numpy as np

        duels = self._at(rows)
        along = pull[duels.first] - pull[duels.second] + duels.terms @ pull[size:]
        scores = (duels.outcomes - comparisons.chances_of(duels, values, size)) * along
        held = self._held[self._which[rows]]
        _, local = np.unique(self._which[rows], return_inverse=True)
        whole = np.bincount(local, weights=scores)[local] if len(rows) else scores
        left = np.where(held > 1, (whole - scores) / np.maximum(held - 1, 1), 0.0)
        found: Floats = left - whole / np.maximum(held, 1)
        return found

    def changed(self, gone: Codes) -> CodedDuels:
        """Return all duels of those users on those pairs with what changes in their weights."""
        import numpy as np

        groups = np.unique(self._which[gone])
        held = self._held[groups]
        offsets = np.repeat(self._begins[groups] - np.cumsum(held) + held, held)
        rows = self._order[offsets + np.arange(len(offsets))]
        is_left = ~np.isin(rows, gone)
        local = np.repeat(np.arange(len(groups)), held)
        left = np.bincount(local, weights=is_left, minlength=len(groups))[local]
        weights = np.where(is_left, 1 / np.maximum(left, 1), 0.0) - self._duels.weights[rows]
        found = self._at(rows)
        return CodedDuels(
            found.users, found.first, found.second, found.outcomes, weights, found.terms
        )

    def _at(self, rows: Codes) -> CodedDuels:
        duels = self._duels
        return CodedDuels(
            duels.users[rows],
            duels.first[rows],
            duels.second[rows],
            duels.outcomes[rows],
            duels.weights[rows],
            duels.terms[rows],
        )
