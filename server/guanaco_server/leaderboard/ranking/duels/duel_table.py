"""Holds the duels of a competition in columns, and turns those that count into comparisons.

A duel's outcome is its first vote within the competition's window, as it was given: a vote that is replaced changes what was counted
before, and no martingale allows for that. All duels of one user on the same two submissions together weigh one comparison, so that who votes
on a pair fifty times does not outweigh fifty users. What rules leave out (duel_rules.py) does
not count, unless an admin has allowed it.

A duel takes 76 bytes with an id of the platform's own, and its user some 250 once; as objects a duel took 620.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from guanaco_server.duels.records import RecordedDuel
from guanaco_server.duels.scores import PairResults
from guanaco_server.leaderboard.counting.votes import VotingWindow
from guanaco_server.leaderboard.flags.rules import Owner, Rule
from guanaco_server.leaderboard.ranking.duels.duel_rows import (
    BAD,
    EPOCH,
    HALF,
    KINDS,
    LOST,
    ROW,
    TICK,
    UNKNOWN,
    UNMEASURED,
    WON,
    WORTH,
    NameCodes,
    ticks_of,
)
from guanaco_server.leaderboard.ranking.duels.duel_rules import (
    FIRST_VOTES_SINCE,
    NEWEST_SCHEMA,
    UNOWNED,
    DuelFlag,
    Sides,
    flags_of,
    marks,
    sides_of,
)
from guanaco_server.leaderboard.ranking.duels.style import Style
from guanaco_server.leaderboard.ranking.rules import Fit, VotesByUser
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER
from guanaco_server.statistics.duel_strengths import PairCounts
from guanaco_server.statistics.strength_prior import dependence_of
from guanaco_server.statistics.votes import VoteCount

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guanaco_server.leaderboard.ranking.duels.duel_rows import Flags, Rows
    from guanaco_server.leaderboard.ranking.strengths.bradley_terry import Codes, Floats
    from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels

AllowedFlags = Collection[tuple[str, str]]  # (battle, rule)


@dataclass(frozen=True)
class DuelVotes:
    """The duels that count, in the order of their ids.

    Attributes:
        users: The name of each user code.
        submissions: The name of each submission code.
        rows: A duel each, in the columns of ROW; None where there are no duels.
        terms: What differs in style, where the rule controls for it.
        flags: Why duels are left out; those that an admin has allowed count all the same.
    """

    users: Sequence[str] = ()
    submissions: Sequence[str] = ()
    rows: Rows | None = None
    terms: Floats | None = None
    flags: Sequence[DuelFlag] = ()

    @property
    def total(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def counts(self) -> Counter[str]:
        """Count the duels of each submission."""
        found: Counter[str] = Counter()
        if self.rows is not None:
            for side in ("a", "b"):
                held = Counter(self.rows[side].tolist())
                found.update({self.submissions[code]: many for code, many in held.items()})
        return found

    def by_pair(self) -> PairCounts:
        """Count the duels of pairs as the verdict tests them; two bad replies are a tie."""
        return {sides: results.tested for sides, results in self.results_by_pair().items()}

    def results_by_pair(self) -> dict[tuple[str, str], PairResults]:
        """Count the duels of pairs. The first duels of a user on a pair count; this choice knows no vote."""
        import numpy as np

        if self.rows is None:
            return {}
        size = len(self.submissions)
        rows = self._tested()
        place = np.empty(size, dtype=np.int64)
        names = sorted(range(size), key=self.submissions.__getitem__)
        place[names] = range(size)
        a, b = place[rows["a"]], place[rows["b"]]
        pairs = np.minimum(a, b) * size + np.maximum(a, b)
        is_turned = (a > b) & (rows["outcome"] != BAD)
        outcomes = np.where(is_turned, WON - rows["outcome"], rows["outcome"])
        cells = np.bincount(pairs * len(KINDS) + outcomes)
        found: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for cell in np.flatnonzero(cells).tolist():
            pair, outcome = divmod(cell, len(KINDS))
            one, other = divmod(pair, size)
            sides = self.submissions[names[one]], self.submissions[names[other]]
            found[sides][KINDS[outcome]] = int(cells[cell])
        return {sides: PairResults(**held) for sides, held in found.items()}

    def dependence(self, strengths: Mapping[str, float], leader: str) -> float:
        """Return how many times less the duels that the verdict tests tell of a leader than independent ones; ``strengths`` are in wins less losses."""
        import numpy as np

        if not self.total:
            return 1.0
        rows = self._tested()
        known = np.asarray([strengths.get(name, 0.0) for name in self.submissions])
        first, second = rows["a"].astype(np.int64), rows["b"].astype(np.int64)
        worths = np.where(rows["outcome"] == BAD, HALF, rows["outcome"]) / WON
        expected = 0.5 + (known[first] - known[second]) / 2
        users, place = rows["user"].astype(np.int64), self.submissions.index(leader)
        return dependence_of(users, first, second, worths, expected, place)

    def dependence_by_rival(self, leader: str) -> dict[str, float]:
        """Return how many times less the tested duels of a leader and each rival tell than independent ones: what is foretold of the two is of these alone."""
        import numpy as np

        if leader not in self.counts():
            return {}
        rows, mine = self._tested(), self.submissions.index(leader)
        rows = rows[(rows["a"] == mine) | (rows["b"] == mine)]
        rivals = np.where(rows["a"] == mine, rows["b"], rows["a"])
        order = np.argsort(rivals, kind="stable")
        begins = np.flatnonzero(np.diff(rivals[order], prepend=-1))
        worths = np.where(rows["outcome"] == BAD, HALF, rows["outcome"]) / WON
        worths = np.where(rows["a"] == mine, worths, 1 - worths)
        found = {}
        for places in np.split(order, begins[1:]):
            seen = worths[places]
            sides = np.zeros(len(places), dtype=np.int64), np.ones(len(places), dtype=np.int64)
            expected = np.full(len(places), seen.mean())
            users = rows["user"][places].astype(np.int64)
            name = self.submissions[int(rivals[places[0]])]
            found[name] = dependence_of(users, *sides, seen, expected, 0)
        return found

    def _tested(self) -> Rows:
        """Return the first duels of each user on each pair, in the order of their first votes."""
        import numpy as np

        assert self.rows is not None, "there are duels"
        rows = self.rows[np.argsort(self.rows["at"], kind="stable")]
        size = np.int64(len(self.submissions))
        pairs = np.minimum(rows["a"], rows["b"]) * size + np.maximum(rows["a"], rows["b"])
        return rows[_number_within(rows["user"] * size**2 + pairs) < COUNTED_PER_USER]

    def by_breadth(self) -> dict[tuple[str, bool], VoteCount]:
        """Count wins and losses by submission, and whether the user had duels without it too.

        A user's first duel of a submission that has a winner counts, so that users count alike. Users all of whose duels are of that
        submission are under False.
        """
        if self.rows is None:
            return {}
        held: Counter[int] = Counter()
        of: Counter[tuple[int, int]] = Counter()
        firsts: dict[tuple[int, int], bool] = {}
        for user, a, b, outcome, *_ in sorted(self.rows.tolist(), key=lambda row: row[4]):
            held[user] += 1
            for one, won in ((a, WON), (b, LOST)):
                of[user, one] += 1
                if outcome in (WON, LOST):
                    firsts.setdefault((user, one), outcome == won)
        found: defaultdict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0])
        for (user, one), has_won in firsts.items():
            is_broad = of[user, one] < held[user]
            found[self.submissions[one], is_broad][not has_won] += 1
        return {key: VoteCount(won, lost) for key, (won, lost) in found.items()}

    def coded(self, index: Callable[[str], int], users: Mapping[str, int]) -> CodedDuels:
        """Return the duels as a fit takes them; ``users`` are the places of those who voted by thumbs too."""
        import numpy as np

        from guanaco_server.leaderboard.ranking.strengths.comparisons import CodedDuels, weights_of

        rows = np.zeros(0, dtype=ROW) if self.rows is None else self.rows
        places = dict(users)
        voters = _renumbered(
            rows["user"], lambda code: places.setdefault(self.users[code], len(places))
        )
        sides = np.concatenate([rows["a"], rows["b"]])
        sides = _renumbered(sides, lambda code: index(self.submissions[code]))
        first, second = sides[: len(rows)], sides[len(rows) :]
        return CodedDuels(
            users=voters,
            first=first,
            second=second,
            outcomes=np.where(rows["outcome"] == BAD, HALF, rows["outcome"]) / 2,
            weights=weights_of(voters, first, second),
            terms=np.zeros((len(rows), 0)) if self.terms is None else self.terms,
        )

    def fit(self, votes: VotesByUser, users: Sequence[str]) -> Fit:
        """Return what fits the strengths by these duels and the votes of ``users``, given in that order."""
        from guanaco_server.leaderboard.ranking.strengths import comparisons

        places = {user: place for place, user in enumerate(users)}
        coded = self.coded(votes.index_of, places)
        return lambda by_user, size: comparisons.fit(by_user, size, coded)


NO_DUELS = DuelVotes()


class DuelTable:
    """The recorded duels of one competition."""

    def __init__(self) -> None:
        import numpy as np

        self._ids: NDArray[np.bytes_] = np.zeros(0, dtype="S1")
        self._rows: Rows = np.zeros(0, dtype=ROW)
        self._users, self._submissions = NameCodes(), NameCodes()
        self._revoted: dict[bytes, tuple[tuple[int, int], ...]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def row_bytes(self) -> int:
        """The memory that the rows take, without the names of users."""
        return self._ids.nbytes + self._rows.nbytes

    @property
    def newest(self) -> datetime | None:
        """Return the time of the latest vote."""
        return EPOCH + int(self._rows["at"].max()) * TICK if len(self) else None

    def take(self, duels: Iterable[RecordedDuel]) -> bool:
        """Take over duels that are new, or that were voted on again; return whether anything has changed."""
        import numpy as np

        ordered = {one.id.encode(): one for one in duels}
        ids = np.asarray(sorted(ordered), dtype=np.bytes_)
        rows = np.asarray([self._row(ordered[one]) for one in sorted(ordered)], dtype=ROW)
        places, is_known = self._find(ids)
        there = places[is_known]
        rows["style"][is_known] = self._rows["style"][there]
        revoted = {id_: _ticks(one) for id_, one in ordered.items() if len(one.votes) > 1}
        has_changed = (
            not is_known.all()
            or self._rows[there].tobytes() != rows[is_known].tobytes()
            or any(self._revoted.get(id_) != votes for id_, votes in revoted.items())
        )
        self._rows[there] = rows[is_known]
        self._revoted |= revoted
        if not is_known.all():
            width = np.promote_types(self._ids.dtype, ids.dtype)
            self._ids = np.insert(self._ids.astype(width), places[~is_known], ids[~is_known])
            self._rows = np.insert(self._rows, places[~is_known], rows[~is_known])
        return has_changed

    def unmeasured(self) -> list[str]:
        """Return the duels whose replies' style is not known."""
        return [one.decode() for one in self._ids[~self._is_measured].tolist()]

    def measure(self, styles: Mapping[str, tuple[Style, Style]]) -> None:
        """Note the style of both replies, by duel."""
        import numpy as np

        ids = np.asarray([one.encode() for one in styles], dtype=np.bytes_)
        found = [(a.characters, a.marks, b.characters, b.marks) for a, b in styles.values()]
        measured = np.asarray(found, dtype=np.int32).reshape(len(ids), 4)
        places, is_known = self._find(ids)
        self._rows["style"][places[is_known]] = measured[is_known]

    def take_styles(self, before: DuelTable) -> None:
        """Take over what an earlier table had measured, for replies do not change."""
        places, is_known = before._find(self._ids)
        self._rows["style"][is_known] = before._rows["style"][places[is_known]]

    def counted(
        self,
        owners: Mapping[str, Owner],
        window: VotingWindow,
        *,
        has_styles: bool = False,
        allowed: AllowedFlags = (),
        schema: int = NEWEST_SCHEMA,
    ) -> DuelVotes:
        """Return the duels that count.

        Args:
            owners: The owner of each submission.
            window: When the competition takes votes.
            has_styles: Style is controlled for: only those whose replies are measured.
            allowed: The flags that an admin has allowed.
            schema: The season's schema by whose rules they count (seasons/document.py); up to 6 the latest votes do.
        """
        import numpy as np

        rows, names = self._rows.copy(), self._submissions.all
        rows["at"], rows["outcome"] = self._within(window, is_first=schema >= FIRST_VOTES_SINCE)
        sides = sides_of(rows, self._users.all, names, owners)
        is_known = (rows["outcome"] != UNKNOWN) & (sides.a != UNOWNED) & (sides.b != UNOWNED)
        rows, ids = rows[is_known], self._ids[is_known]
        sides = Sides(*(side[is_known] for side in sides))
        found = marks(rows, sides, names, owners, schema=schema)
        let_in = {rule: [one.encode() for one, of in allowed if of == rule] for rule in Rule}
        counts = np.ones(len(rows), dtype=bool)
        for mark in found:
            counts[mark.places[~np.isin(ids[mark.places], let_in[mark.rule])]] = False
        if has_styles:
            counts &= self._is_measured[is_known]
        terms = _terms(rows["style"][counts]) if has_styles else None
        flags = flags_of(found, rows, ids, names)
        return DuelVotes(self._users.all, names, rows[counts], terms, flags)

    def _row(self, duel: RecordedDuel) -> tuple[Any, ...]:
        at, outcome = _ticks(duel)[-1]
        user = self._users.code(duel.user_key)
        a = self._submissions.code(duel.a_submission)
        return user, a, self._submissions.code(duel.b_submission), outcome, at, UNMEASURED

    def _find(self, ids: NDArray[np.bytes_]) -> tuple[Codes, Flags]:
        """Return where each id is or would be, and whether it is there."""
        import numpy as np

        places = np.searchsorted(self._ids, ids)
        is_known = places < len(self._ids)
        is_known[is_known] = self._ids[places[is_known]] == ids[is_known]
        return places, is_known

    @property
    def _is_measured(self) -> Flags:
        found: Flags = self._rows["style"][:, 0] != UNMEASURED[0]
        return found

    def _within(self, window: VotingWindow, *, is_first: bool) -> tuple[Codes, Codes]:
        """Return when the first vote within the window was given, and what it or the last one was worth, or UNKNOWN."""
        import numpy as np

        begin = ticks_of(window.starts_at)
        end = np.iinfo(np.int64).max if window.ends_at is None else ticks_of(window.ends_at)
        at = self._rows["at"].copy()
        worth = np.where((begin <= at) & (at < end), self._rows["outcome"], UNKNOWN)
        for id_, votes in self._revoted.items():
            within = [vote for vote in votes if begin <= vote[0] < end] or [(0, UNKNOWN)]
            place = np.searchsorted(self._ids, id_)
            at[place], worth[place] = within[0][0], within[0 if is_first else -1][1]
        return at, worth


def _ticks(duel: RecordedDuel) -> tuple[tuple[int, int], ...]:
    """Return each vote's time and worth. An outcome that only a newer version knows is worth nothing known."""
    return tuple((ticks_of(at), WORTH.get(outcome, UNKNOWN)) for at, outcome in duel.votes)


def _number_within(groups: Codes) -> Codes:
    """Number the members of each group from 0, in the order in which they are."""
    import numpy as np

    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    places = np.arange(len(groups))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(groups)]
    found = np.empty(len(groups), dtype=np.int64)
    found[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return found


def _renumbered(codes: Codes, place: Callable[[int], int]) -> Codes:
    """Replace each code by its place; places are asked for in the order in which codes first occur."""
    import numpy as np

    distinct, begins, which = np.unique(codes, return_index=True, return_inverse=True)
    places = np.zeros(len(distinct), dtype=np.int64)
    for one in np.argsort(begins).tolist():
        places[one] = place(int(distinct[one]))
    return places[which.ravel()]


def _terms(styles: Codes) -> Floats:
    """Return what `style.differences` does, for all duels at once."""
    import numpy as np

    a, b = styles[:, :2].astype(np.float64), styles[:, 2:].astype(np.float64)
    total = a + b
    shares = np.divide(a - b, total, out=np.zeros_like(total), where=total > 0)
    return np.column_stack([shares, np.ones(len(styles))])
