"""The audit trail of ratings and duels that rules leave out, hints of votes that no rule catches, and an admin's decision against a rule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import FlagNotFound
from guanaco.leaderboard import VoteFlag, VotePattern
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import queries as counting_queries
from guanaco_server.leaderboard.flags import queries
from guanaco_server.leaderboard.flags.patterns import Contrast, VoteBreadth, contrasts
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.tables import VoteFlagRow
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.votes import VoteCount

ALLOW = "allow vote"


class FlagService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        competitions: CompetitionService,
        duels: DuelReader,
        audit: AuditLog,
    ) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._duels = duels
        self._audit = audit
        self._one_reads_duels = asyncio.Lock()

    async def newest(
        self,
        competition: str | None,
        submission_id: str | None,
        limit: int,
        *,
        duels: bool | None = None,
    ) -> list[VoteFlag]:
        """Return the newest first: of ratings, of duels, or of both."""
        if competition is not None:
            await self._competitions.find(competition)
        async with self._database.read() as session:
            rows = await queries.newest(session, competition, submission_id, limit, duels)
            return [_read(row) for row in rows]

    async def of_rating(self, feedback_id: str) -> list[VoteFlag]:
        """Return the flags of one rating or battle; none if no rule has left it out."""
        async with self._database.read() as session:
            return [_read(row) for row in await queries.of_ratings(session, [feedback_id])]

    async def left_out(self, feedback_ids: Sequence[str]) -> set[str]:
        """Return those of these ratings that a rule leaves out now."""
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.of_ratings(session, feedback_ids)
        return {row.feedback_id for row in rows if row.lifted_at is None and row.allowed_at is None}

    async def patterns(self, competition_id: str) -> list[VotePattern]:
        """Compare how each submission's votes are made up; the one that is farthest from the others comes first."""
        await self._competitions.find(competition_id)
        async with self._database.read(may_be_stale=True) as session:
            rows = await counting_queries.votes_by_breadth(session, competition_id)
        return _patterns(
            {(name, is_broad): VoteCount(up, total - up) for name, is_broad, up, total in rows}
        )

    async def duel_patterns(self, competition_id: str) -> list[VotePattern]:
        """Compare the duels of users who had none without that submission with those of others, as ``patterns`` does votes."""
        competition = await self._competitions.find(competition_id)
        async with self._one_reads_duels:
            await self._duels.refresh(competition)
            valid = await self._duels.valid(competition)
        return _patterns(await threads.PAGES.run(valid.by_breadth))

    async def allow(self, account: Account, feedback_id: str) -> list[VoteFlag]:
        """Let the rating or the duel count whatever the rules say, and return its flags. Allowing twice changes nothing.

        A rating is counted again by its submission; duels are all judged again by the next ranking.
        """

        async def allow(session: AsyncSession) -> list[VoteFlag]:
            if await queries.allow(session, feedback_id, self._clock.now(), account.name):
                await self._audit.note(session, account, ALLOW, feedback_id)
            rows = await queries.of_ratings(session, [feedback_id])
            if not rows:
                raise FlagNotFound(feedback_id)
            ratings = {row.submission_id for row in rows if row.rival_id is None}
            await counting_queries.ask_recounts(session, ratings)
            return [_read(row) for row in rows]

        return await self._database.write_unit(allow)


def _patterns(counts: Mapping[tuple[str, bool], VoteCount]) -> list[VotePattern]:
    """Show the counts by submission and whether they are of broad users; the farthest from the others comes first."""
    none = VoteCount(0, 0)
    board = {
        name: VoteBreadth(counts.get((name, False), none), counts.get((name, True), none))
        for name in sorted({name for name, _ in counts})
    }
    found = contrasts(board)
    patterns = [_pattern(name, one, found.get(name)) for name, one in board.items()]
    return sorted(patterns, key=lambda one: -abs(one.z or 0.0))


def _pattern(name: str, one: VoteBreadth, contrast: Contrast | None) -> VotePattern:
    return VotePattern(
        submission_id=name,
        narrow_up=one.narrow.up,
        narrow_down=one.narrow.down,
        broad_up=one.broad.up,
        broad_down=one.broad.down,
        excess=contrast.excess if contrast else None,
        z=contrast.z if contrast else None,
        is_suspicious=contrast is not None and contrast.is_suspicious,
    )


def _read(row: VoteFlagRow) -> VoteFlag:
    return VoteFlag(**{name: getattr(row, name) for name in VoteFlag.model_fields})
