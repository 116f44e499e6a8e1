"""Turns votes on battles into comparisons that count in a ranking.

A duel's outcome is the last vote within the competition's window. All duels of one user on the same two submissions together weigh
one comparison, so that who votes on a pair fifty times does not outweigh fifty users. Two rules leave duels out, as they
leave out ratings (flags/rules.py): those of chats that one of the submissions' own accounts had, and all of a user who had 20
or more and always preferred the same developer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco.duels import DuelOutcome
from guanaco_server.database.database import Database
from guanaco_server.duels import records
from guanaco_server.duels.records import RecordedDuel
from guanaco_server.leaderboard.counting.votes import VotingWindow, window_of
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS, Owner
from guanaco_server.leaderboard.ranking.rules import Fit, VotesByUser
from guanaco_server.leaderboard.ranking.style import TERMS, Style, differences, style_of
from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.duel_strengths import PairCounts
from guanaco_server.submissions.service import SubmissionService

if TYPE_CHECKING:
    from guanaco_server.leaderboard.ranking.comparisons import CodedDuels

OVERLAP = timedelta(minutes=5)  # votes are committed within it; what is older is not read again
REPLIES_AT_ONCE = 1_000

Styles = Mapping[str, tuple[Style, Style]]


@dataclass(frozen=True, slots=True)
class CountedDuel:
    """A duel that counts: ``outcome`` is 1 where side a won, 0 where b did, a half otherwise."""

    id: str
    user: str
    a: str
    b: str
    outcome: float


@dataclass(frozen=True)
class DuelVotes:
    """The duels that count, in the order of their ids, and the styles of their replies where the rule controls for style."""

    duels: Sequence[CountedDuel] = ()
    styles: Styles | None = None

    def counts(self) -> Counter[str]:
        """Count the duels of each submission."""
        return Counter(name for one in self.duels for name in (one.a, one.b))

    def by_pair(self) -> PairCounts:
        """Count the duels of pairs. A user's duels on a pair are one: for the side that they preferred more often, or a tie."""
        worth: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for one in self.duels:
            first, second = sorted((one.a, one.b))
            sign = 1 if one.a == first else -1
            worth[one.user, first, second] += sign * (one.outcome - 0.5)
        found: defaultdict[tuple[str, str], DuelCount] = defaultdict(DuelCount)
        for (_, first, second), lead in worth.items():
            mean = 0.5 if lead == 0 else float(lead > 0)
            found[first, second] = found[first, second].plus(mean)
        return dict(found)

    def coded(self, index: Callable[[str], int], users: Mapping[str, int]) -> CodedDuels:
        """Return the duels in columns; ``users`` are the places of those who voted by thumbs too."""
        import numpy as np

        from guanaco_server.leaderboard.ranking.comparisons import CodedDuels

        known = dict(users)
        rows = [known.setdefault(one.user, len(known)) for one in self.duels]
        first = np.asarray([index(one.a) for one in self.duels], dtype=np.int64)
        second = np.asarray([index(one.b) for one in self.duels], dtype=np.int64)
        pairs = np.stack([rows, np.minimum(first, second), np.maximum(first, second)])
        _, places, shares = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        columns = 0 if self.styles is None else len(TERMS)
        terms = [differences(*self.styles[one.id]) for one in self.duels] if self.styles else []
        return CodedDuels(
            users=np.asarray(rows, dtype=np.int64),
            first=first,
            second=second,
            outcomes=np.asarray([one.outcome for one in self.duels], dtype=np.float64),
            weights=1 / shares[places.ravel()],
            terms=np.asarray(terms, dtype=np.float64).reshape(len(rows), columns),
        )

    def fit(self, votes: VotesByUser, users: Sequence[str]) -> Fit:
        """Return what fits the strengths by these duels and the votes of ``users``, given in that order."""
        from guanaco_server.leaderboard.ranking import comparisons

        places = {user: place for place, user in enumerate(users)}
        coded = self.coded(votes.index_of, places)
        return lambda by_user, size: comparisons.fit(by_user, size, coded)


NO_DUELS = DuelVotes()


def counted_duels(
    recorded: Iterable[RecordedDuel], owners: Mapping[str, Owner], window: VotingWindow
) -> list[CountedDuel]:
    """Return the duels that count, in the order of their ids."""
    by_user: defaultdict[str, list[CountedDuel]] = defaultdict(list)
    for duel in recorded:
        outcomes = [outcome for at, outcome in duel.votes if window.holds(at)]
        sides = duel.a_submission, duel.b_submission
        if not outcomes or any(one not in owners for one in sides):
            continue
        if duel.account_id in {owners[one].account_id for one in sides}:
            continue
        worth = _worth(outcomes[-1])
        if worth is not None:
            by_user[duel.user_key].append(CountedDuel(duel.id, duel.user_key, *sides, worth))
    found = [one for duels in by_user.values() if not _is_devoted(duels, owners) for one in duels]
    return sorted(found, key=lambda one: one.id)


def _worth(outcome: str) -> float | None:
    """Return what a vote is worth for side a; None for one that only a newer version knows."""
    if outcome in (DuelOutcome.TIE, DuelOutcome.BOTH_BAD):
        return 0.5
    return {DuelOutcome.A.value: 1.0, DuelOutcome.B.value: 0.0}.get(outcome)


def _is_devoted(duels: Collection[CountedDuel], owners: Mapping[str, Owner]) -> bool:
    """Tell whether a user always preferred one developer, whoever stood against it."""
    if len(duels) < DEVOTED_RATINGS or any(one.outcome == 0.5 for one in duels):
        return False
    preferred = {owners[one.a if one.outcome else one.b].developer for one in duels}
    return len(preferred) == 1


class DuelBook:
    """A competition's duels in memory from one ranking to the next: only the newest are read again."""

    def __init__(self) -> None:
        self._duels: dict[str, RecordedDuel] = {}
        self._styles: dict[str, tuple[Style, Style]] = {}
        self._newest: datetime | None = None

    async def refresh(self, session: AsyncSession, competition: str, has_styles: bool) -> bool:
        """Read what is new; return whether anything has changed. All is read again once duels were deleted."""
        before = None if self._newest is None else self._newest - OVERLAP
        new = await records.of_competition(session, competition, before)
        has_changed = any(self._duels.get(one.id) != one for one in new)
        self._take(new)
        if await records.count(session, competition) != len(self._duels):
            self._duels.clear()
            self._take(await records.of_competition(session, competition))
            self._styles = {
                one: self._styles[one] for one in self._styles.keys() & self._duels.keys()
            }
            has_changed = True
        if has_styles:
            await read_styles(session, self._duels, self._styles)
        return has_changed

    def votes(
        self, owners: Mapping[str, Owner], window: VotingWindow, has_styles: bool
    ) -> DuelVotes:
        """Return the duels that count."""
        known = self._styles.keys() & self._duels.keys() if has_styles else self._duels.keys()
        found = counted_duels((self._duels[one] for one in known), owners, window)
        return DuelVotes(found, self._styles if has_styles else None)

    def _take(self, duels: Iterable[RecordedDuel]) -> None:
        for one in duels:
            self._duels[one.id] = one
            at = one.votes[-1][0]
            self._newest = at if self._newest is None else max(at, self._newest)


async def read_styles(
    session: AsyncSession, ids: Iterable[str], styles: dict[str, tuple[Style, Style]]
) -> None:
    """Measure the replies of those battles that are not measured yet. A reply never changes."""
    missing = [one for one in ids if one not in styles]
    for start in range(0, len(missing), REPLIES_AT_ONCE):
        part = missing[start : start + REPLIES_AT_ONCE]
        found = await records.replies(session, part)
        styles |= await asyncio.to_thread(_measured, found)


def _measured(replies: Mapping[str, tuple[str, str]]) -> dict[str, tuple[Style, Style]]:
    return {battle: (style_of(a), style_of(b)) for battle, (a, b) in replies.items()}


class DuelReader:
    """Reads the duels of competitions that count them. Each competition's stay in memory, until told to forget them."""

    def __init__(self, database: Database, submissions: SubmissionService) -> None:
        self._database = database
        self._submissions = submissions
        self._books: defaultdict[str, DuelBook] = defaultdict(DuelBook)
        self._read: set[str] = set()

    def forget(self) -> None:
        self._books.clear()
        self._read.clear()

    async def refresh(self, competition: Competition) -> bool:
        """Read what is new, and return whether anything has changed. Nobody votes in a frozen competition."""
        is_final = competition.frozen_at is not None and competition.id in self._read
        if not competition.duels.counted or is_final:
            return False
        async with self._database.read() as session:
            has_changed = await self._books[competition.id].refresh(
                session, competition.id, competition.duels.style_control
            )
        if competition.frozen_at is not None:
            self._read.add(competition.id)
        return has_changed

    async def votes(self, competition: Competition) -> DuelVotes:
        """Return the duels that were found by the last ``refresh`` and count."""
        if not competition.duels.counted:
            return NO_DUELS
        owners = {
            brief.id: Owner(brief.account_id, brief.developer)
            for brief in await self._submissions.briefs()
        }
        book, has_styles = self._books[competition.id], competition.duels.style_control
        return await asyncio.to_thread(book.votes, owners, window_of(competition), has_styles)

    async def read(self, competition: Competition) -> DuelVotes:
        """Return the duels that count, from what is recorded now."""
        await self.refresh(competition)
        return await self.votes(competition)
