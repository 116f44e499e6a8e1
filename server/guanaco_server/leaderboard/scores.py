"""The parts of the leaderboard, put together."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations.records import user_key
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback.erasure import ErasedUser
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.leaderboard.flags.service import FlagService
from guanaco_server.leaderboard.loop import ScoreLoop
from guanaco_server.leaderboard.ranking.history import ScoreHistoryReader
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.leaderboard.seasons.service import SeasonService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService


class Scores:
    """One process at a time runs ``loop``; any process may use the rest."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
    ) -> None:
        self.counter = ScoreCounter(database, clock, submissions, competitions)
        self.loop = ScoreLoop(self.counter, StandingsPublisher(database, clock, competitions))
        self.leaderboard = LeaderboardService(database, clock, submissions, competitions)
        self.history = ScoreHistoryReader(database, clock)
        self.counts = RatingCounts(database)
        self.flags = FlagService(database, clock)
        self.seasons = SeasonService(database, submissions, competitions)

    async def forget(self, session: AsyncSession, erased: ErasedUser) -> None:
        """Within the caller's transaction, which erases what the user wrote: delete every row that names them."""
        keys = [user_key(account_id, erased.user_id) for account_id in erased.account_ids]
        await self.counter.forget_users(session, keys)
