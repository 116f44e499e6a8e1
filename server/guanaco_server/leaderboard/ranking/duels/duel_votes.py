"""Reads the duels of the competitions that count them, and keeps them in memory from one ranking to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco_server.database.database import Database
from guanaco_server.duels import records
from guanaco_server.leaderboard.counting.votes import VotingWindow, window_of
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.ranking.duels.duel_rules import BURSTS_SINCE, NEWEST_SCHEMA
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelTable, DuelVotes
from guanaco_server.leaderboard.ranking.duels.style import Style, style_of
from guanaco_server.runtime import threads
from guanaco_server.submissions.service import SubmissionService

OVERLAP = timedelta(minutes=5)  # votes are committed within it; what is older is not read again
REPLIES_AT_ONCE = 1_000


class DuelCache:
    """A competition's duels: only the newest are read again, and each reply's style is measured once."""

    def __init__(self) -> None:
        self._table = DuelTable()
        self._is_stale = False
        self._allowed: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Have all duels read again. What was measured of replies stays, for they do not change."""
        self._is_stale = True

    async def refresh(self, session: AsyncSession, competition: Competition) -> bool:
        """Read what is new; return whether anything has changed. All is read again once duels were deleted.

        A flag that is allowed after the freeze of its competition changes nothing any more.
        """
        has_changed = not self._is_stale and await self._read_new(session, competition.id)
        if self._is_stale or await records.count(session, competition.id) != len(self._table):
            await self._read_all(session, competition.id)
            has_changed = True
        if competition.duels.style_control:
            await self._read_styles(session)
        before, self._allowed = (
            self._allowed,
            await flag_queries.allowed(session, competition.id, competition.frozen_at),
        )
        return has_changed or before != self._allowed

    def votes(
        self,
        owners: Mapping[str, Owner],
        window: VotingWindow,
        has_styles: bool,
        schema: int,
    ) -> DuelVotes:
        """Return the duels that count."""
        return self._table.counted(
            owners,
            window,
            has_styles=has_styles,
            allowed=self._allowed if schema >= BURSTS_SINCE else (),
            schema=schema,
        )

    async def _read_new(self, session: AsyncSession, competition: str) -> bool:
        since = None if self._table.newest is None else self._table.newest - OVERLAP
        parts = [
            self._table.take(part)
            async for part in records.of_competition(session, competition, since)
        ]
        return any(parts)

    async def _read_all(self, session: AsyncSession, competition: str) -> None:
        table = DuelTable()
        async for part in records.of_competition(session, competition):
            table.take(part)
        table.take_styles(self._table)
        self._table, self._is_stale = table, False

    async def _read_styles(self, session: AsyncSession) -> None:
        missing = self._table.unmeasured()
        for start in range(0, len(missing), REPLIES_AT_ONCE):
            found = await records.replies(session, missing[start : start + REPLIES_AT_ONCE])
            self._table.measure(await threads.PAGES.run(_measured, found))


def _measured(replies: Mapping[str, tuple[str, str]]) -> dict[str, tuple[Style, Style]]:
    return {battle: (style_of(a), style_of(b)) for battle, (a, b) in replies.items()}


class DuelReader:
    """Reads the duels of competitions that have any.

    Duels of running competitions stay in memory. Duels of a frozen one are read when needed, and dropped afterwards.
    """

    def __init__(self, database: Database, submissions: SubmissionService) -> None:
        self._database = database
        self._submissions = submissions
        self._books: defaultdict[str, DuelCache] = defaultdict(DuelCache)
        self._final: set[str] = set()

    def forget(self) -> None:
        """Have everything read again."""
        for book in self._books.values():
            book.forget()
        self._final.clear()

    async def refresh(self, competition: Competition) -> bool:
        """Read what is new, and return whether anything has changed. Nobody votes in a frozen competition."""
        if not competition.duels.are_kept:
            self._books.pop(competition.id, None)
            return False
        if competition.frozen_at is not None and competition.id in self._final:
            return False
        async with self._database.read() as session:
            has_changed = await self._books[competition.id].refresh(session, competition)
        if competition.frozen_at is not None:
            self._final.add(competition.id)
        return has_changed

    async def votes(self, competition: Competition) -> DuelVotes:
        """Return the duels that count in the ranking, as the last ``refresh`` found them."""
        return await self.valid(competition) if competition.duels.counted else NO_DUELS

    async def valid(self, competition: Competition, *, schema: int = NEWEST_SCHEMA) -> DuelVotes:
        """Return the duels that no rule of a season's schema leaves out, also where the ranking does not count them.

        Up to schema 5 no admin could allow anything.
        """
        if not competition.duels.are_kept:
            return NO_DUELS
        if competition.id not in self._books:
            self._final.discard(competition.id)
            await self.refresh(competition)
        owners = {
            brief.id: Owner(brief.account_id, brief.developer)
            for brief in await self._submissions.catalog.briefs()
        }
        book, has_styles = self._books[competition.id], competition.duels.style_control
        if competition.frozen_at is not None:
            del self._books[competition.id]
        return await threads.PAGES.run(
            book.votes, owners, window_of(competition), has_styles, schema
        )

    async def read(self, competition: Competition) -> DuelVotes:
        """Return the duels that count, from what is recorded now."""
        await self.refresh(competition)
        return await self.votes(competition)
