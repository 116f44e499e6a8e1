"""Builds the retention room."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.partitions.service import Periods
from guanaco_server.retention.service import RetentionService
from guanaco_server.runtime.clock import Clock
from guanaco_server.runtime.duty import Duty


@dataclass(frozen=True)
class RetentionRoom:
    """One process at a time runs ``duty``."""

    service: RetentionService
    periods: Periods
    duty: Duty


def build_retention(
    database: Database,
    clock: Clock,
    *,
    periods: Periods,
    competitions: CompetitionService,
    conversations: ConversationService,
    feedback: FeedbackService,
    counter: ScoreCounter,
) -> RetentionRoom:
    service = RetentionService(
        database,
        clock,
        periods=periods,
        competitions=competitions,
        conversations=conversations,
        feedback=feedback,
        counter=counter,
    )
    return RetentionRoom(service, periods, Duty("retention", service.keep))
