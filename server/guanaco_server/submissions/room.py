"""Builds the submissions room: the life of a submission, its events, and who hears of its statuses."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.events import EventFeed, StatusChanges
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class SubmissionsRoom:
    """``changes`` announces each change of a status within this process."""

    service: SubmissionService
    events: EventFeed
    changes: StatusChanges


def build_submissions(
    database: Database,
    clock: Clock,
    *,
    deployments: DeploymentService,
    audit: AuditLog,
    settings: Settings,
) -> SubmissionsRoom:
    changes = StatusChanges()
    service = SubmissionService(
        database, clock, changes, deployments, audit, settings.default_reward_submission
    )
    return SubmissionsRoom(service, EventFeed(database), changes)
