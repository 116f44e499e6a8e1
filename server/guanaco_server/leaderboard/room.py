"""Builds the leaderboard room: votes are counted, submissions ranked, seasons frozen."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback.erasures.service import ErasedUser
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.leaderboard.counting.measurement import DEFINITIONS
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.leaderboard.field import FieldReader
from guanaco_server.leaderboard.flags.service import FlagService
from guanaco_server.leaderboard.loop import ScoreLoop
from guanaco_server.leaderboard.races import RaceReader
from guanaco_server.leaderboard.ranking.duels.duel_votes import DuelReader
from guanaco_server.leaderboard.ranking.history import ScoreHistoryReader
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.leaderboard.seasons.service import SeasonService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.leaderboard.stability import StabilityService
from guanaco_server.leaderboard.uniform import UniformService
from guanaco_server.leaderboard.verdict import VerdictService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class LeaderboardRoom:
    """One process at a time runs ``loop``; any process may use the rest."""

    leaderboard: LeaderboardService
    stability: StabilityService
    verdicts: VerdictService
    races: RaceReader
    uniform: UniformService
    counter: ScoreCounter
    loop: ScoreLoop
    history: ScoreHistoryReader
    counts: RatingCounts
    flags: FlagService
    seasons: SeasonService

    async def forget(self, session: AsyncSession, erased: ErasedUser) -> None:
        """Forget an erased user, within the caller's transaction."""
        keys = [user_key(account_id, erased.user_id) for account_id in erased.account_ids]
        await self.counter.forget_users(session, keys)


def build_leaderboard(
    database: Database,
    clock: Clock,
    *,
    submissions: SubmissionService,
    competitions: CompetitionService,
    audit: AuditLog,
) -> LeaderboardRoom:
    fields = FieldReader(database, submissions)
    verdicts = VerdictService(database, clock, competitions, submissions, fields)
    stability = StabilityService(database, clock, competitions, fields)
    seasons = SeasonService(database, clock, submissions, competitions)
    counter = ScoreCounter(database, clock, submissions, competitions, DEFINITIONS)
    return LeaderboardRoom(
        leaderboard=LeaderboardService(database, clock, submissions, competitions),
        stability=stability,
        verdicts=verdicts,
        races=RaceReader(database, submissions, competitions),
        uniform=UniformService(database, clock, competitions),
        counter=counter,
        loop=ScoreLoop(
            counter,
            StandingsPublisher(database, clock, competitions, submissions),
            verdicts,
            stability,
            seasons,
            database.watch_commits(),
        ),
        history=ScoreHistoryReader(database, clock),
        counts=RatingCounts(database),
        flags=FlagService(database, clock, competitions, DuelReader(database, submissions), audit),
        seasons=seasons,
    )
