"""The parts of this room, put together."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations.records import user_key
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback.erasure import ErasedUser
from guanaco_server.leaderboard.audit import AuditService
from guanaco_server.leaderboard.books import Books
from guanaco_server.leaderboard.history import HistoryReader
from guanaco_server.leaderboard.rating_counts import RatingCounts
from guanaco_server.leaderboard.scorekeeper import Scorekeeper
from guanaco_server.leaderboard.seasons import SeasonService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.leaderboard.standings import StandingsKeeper
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService


class Scores:
    """``keeper`` is a loop, the duty of one process; the rest any process may use."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
    ) -> None:
        self.books = Books(database, clock, submissions, competitions)
        self.keeper = Scorekeeper(self.books, StandingsKeeper(database, clock, competitions))
        self.leaderboard = LeaderboardService(database, clock, submissions, competitions)
        self.history = HistoryReader(database, clock)
        self.counts = RatingCounts(database)
        self.audit = AuditService(database, clock)
        self.seasons = SeasonService(database, submissions, competitions)

    async def forget(self, session: AsyncSession, erased: ErasedUser) -> None:
        """Within the caller's transaction, in which what the user wrote is erased."""
        keys = [user_key(account_id, erased.user_id) for account_id in erased.account_ids]
        await self.books.forget_users(session, keys)
