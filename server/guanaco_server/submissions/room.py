"""Builds the submissions room: the life of a submission, its events, and who hears of its statuses."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import AccountService
from guanaco_server.database.database import Database
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.hub_tokens import HubTokens
from guanaco_server.submissions.quotas.service import Limits, QuotaService
from guanaco_server.submissions.rollouts.canaries import CanaryRecorder
from guanaco_server.submissions.rollouts.records import RolloutRecords
from guanaco_server.submissions.rollouts.service import RolloutService
from guanaco_server.submissions.runs.events import EventFeed, StatusChanges
from guanaco_server.submissions.service import SubmissionService
from guanaco_server.submissions.stored_prompts.service import PromptStore
from guanaco_server.submissions.sweeps.service import SweepService
from guanaco_server.workers.absence import WorkerAbsences


@dataclass(frozen=True)
class SubmissionsRoom:
    """``changes`` announces each change of a status within this process."""

    service: SubmissionService
    sweeps: SweepService
    quotas: QuotaService
    hub_tokens: HubTokens
    events: EventFeed
    changes: StatusChanges
    rollouts: RolloutRecords
    canaries: CanaryRecorder


def build_submissions(
    database: Database,
    clock: Clock,
    *,
    deployments: DeploymentService,
    versions: VersionsBeside,
    accounts: AccountService,
    audit: AuditLog,
    prompts: PromptService,
    absences: WorkerAbsences,
    secret: bytes,
    settings: Settings,
) -> SubmissionsRoom:
    """``secret`` is one that every process of the platform has."""
    changes = StatusChanges()
    quotas = QuotaService(database, clock, accounts, audit, Limits.of(settings))
    hub_tokens = HubTokens(secret)
    records = RolloutRecords(clock, deployments, versions)
    rollouts = RolloutService(
        database, clock, changes, deployments, audit, quotas, hub_tokens, records
    )
    stored_prompts = PromptStore(
        database, clock, accounts, audit, prompts, settings.prompt_bytes_per_account
    )
    service = SubmissionService(
        database,
        clock,
        changes,
        deployments,
        audit,
        quotas,
        hub_tokens,
        rollouts,
        stored_prompts,
        absences,
        settings.default_reward_submission,
    )
    return SubmissionsRoom(
        service,
        SweepService(database, clock, changes, quotas, service),
        quotas,
        hub_tokens,
        EventFeed(database),
        changes,
        records,
        CanaryRecorder(database),
    )
