"""Builds the competitions room."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class CompetitionsRoom:
    service: CompetitionService


def build_competitions(
    database: Database, clock: Clock, *, audit: AuditLog, submissions: SubmissionService
) -> CompetitionsRoom:
    return CompetitionsRoom(CompetitionService(database, clock, audit, submissions))
