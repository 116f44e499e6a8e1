"""Builds the leaderboard room: votes are counted, submissions ranked, seasons frozen."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class LeaderboardRoom:
    """``keeper`` is a loop, the duty of one process; any process may use the rest."""

    leaderboard: LeaderboardService
    books: Books
    keeper: Scorekeeper
    history: HistoryReader
    counts: RatingCounts
    audit: AuditService
    seasons: SeasonService

    async def forget(self, session: AsyncSession, erased: ErasedUser) -> None:
        """Forget an erased user, within the caller's transaction."""
        keys = [user_key(account_id, erased.user_id) for account_id in erased.account_ids]
        await self.books.forget_users(session, keys)


def build_leaderboard(
    database: Database,
    clock: Clock,
    *,
    submissions: SubmissionService,
    competitions: CompetitionService,
) -> LeaderboardRoom:
    books = Books(database, clock, submissions, competitions)
    return LeaderboardRoom(
        leaderboard=LeaderboardService(database, clock, submissions, competitions),
        books=books,
        keeper=Scorekeeper(books, StandingsKeeper(database, clock, competitions)),
        history=HistoryReader(database, clock),
        counts=RatingCounts(database),
        audit=AuditService(database, clock),
        seasons=SeasonService(database, submissions, competitions),
    )
