"""Builds the duels room: battles of two replies, and the votes on them."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.chat.room import ChatRoom
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.duels.battling import BattleService
from guanaco_server.duels.regenerating import RegenerationService
from guanaco_server.duels.replaying import RivalReplayService
from guanaco_server.duels.service import DuelService
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.runtime.duty import Duty
from guanaco_server.settings import Settings
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class DuelsRoom:
    battles: BattleService
    regenerations: RegenerationService
    service: DuelService
    rivals: RivalReplayService
    outcomes: Duty


def build_duels(
    database: Database,
    clock: Clock,
    *,
    submissions: SubmissionService,
    competitions: CompetitionService,
    routing: RoutingService,
    chat: ChatRoom,
    settings: Settings,
) -> DuelsRoom:
    service = DuelService(
        database,
        clock,
        submissions,
        competitions,
        chat.conversations,
        chat.editor,
        Anonymizer(settings.phone_regions),
    )
    regenerations = RegenerationService(database, clock, routing, chat.replies, competitions)
    return DuelsRoom(
        BattleService(database, clock, routing, chat.replies),
        regenerations,
        service,
        RivalReplayService(database, routing),
        Duty("outcomes of regenerations", regenerations.note_outcomes),
    )
