"""Reads submissions for the rest of the platform: who is served, who owns what, and how many there are of each status.

``service.py`` has the actions of developers on their submissions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.prompts import Prompt, UnknownPrompt
from guanaco.submissions import IN_PROGRESS, GenerationParams, Status, Submission, SubmissionKind
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.scaling.usage import Ownership
from guanaco_server.submissions import queries
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.reading import read_submission
from guanaco_server.submissions.rewards import RewardService
from guanaco_server.submissions.rollouts import queries as rollout_queries
from guanaco_server.submissions.runs import queries as run_queries
from guanaco_server.submissions.tables import SubmissionRow


@dataclass(frozen=True)
class ServingSubmission:
    """A published chat model, as the gateway needs it."""

    id: str
    account_id: str
    developer: str
    name: str
    repo: str
    status: Status
    params: GenerationParams
    formatter: Prompt
    artifact_key: str
    created_at: datetime
    reward: str | None = None
    reward_formatter: Prompt | None = None
    parameter_count: int | None = None

    @property
    def is_understood(self) -> bool:
        """Return whether this version can make prompts for it; a newer one may have stored its formatter."""
        return not isinstance(self.formatter, UnknownPrompt)


@dataclass(frozen=True)
class SubmissionBrief:
    """A submission's names, and its owner."""

    id: str
    account_id: str
    developer: str
    name: str
    repo: str
    status: Status
    created_at: datetime
    parameter_count: int | None
    license: str | None
    architecture: str | None
    sweep: str | None


class PastEntrant(NamedTuple):
    """A submission that took part once, with what an entry rule asks of it."""

    id: str
    developer: str
    created_at: datetime
    parameter_count: int | None


class SubmissionCatalog:
    """All submissions, whoever owns them."""

    def __init__(
        self, database: Database, deployments: DeploymentService, rewards: RewardService
    ) -> None:
        self._database = database
        self._deployments = deployments
        self._rewards = rewards
        self._serving: dict[str, tuple[queries.Version, ServingSubmission]] = {}

    async def list_all(self) -> list[Submission]:
        """List every chat model."""
        async with self._database.read() as session:
            rows = await queries.newest_first(session, kind=SubmissionKind.CHAT)
            return [read_submission(row) for row in rows]

    async def list_rewards(self) -> list[Submission]:
        """List every reward model, newest first."""
        async with self._database.read() as session:
            rows = await queries.newest_first(session, kind=SubmissionKind.REWARD)
            return [read_submission(row) for row in rows]

    async def briefs(self, *, may_be_stale: bool = False) -> list[SubmissionBrief]:
        """List all submissions in brief."""
        async with self._database.read(may_be_stale=may_be_stale) as session:
            return [SubmissionBrief(*row) for row in await queries.briefs(session)]

    async def list_serving(self) -> list[ServingSubmission]:
        """List the served chat models. Every gateway calls this each second, so rows that have not changed are not read again."""
        async with self._database.read() as session:
            versions = await queries.versions(session, *SERVED, kind=SubmissionKind.CHAT)
            known = self._serving
            stale = [
                name
                for name, version in versions.items()
                if name not in known or known[name][0] != version
            ]
            rows = await queries.by_ids(session, stale)
        fresh = {row.id: (queries.version_of(row), _serving(row)) for row in rows}
        self._serving = {name: fresh.get(name) or known[name] for name in versions}
        return [serving for _, serving in self._serving.values()]

    async def deployed_at(self, session: AsyncSession, at: datetime) -> list[PastEntrant]:
        """List the chat models that were deployed at a time, within the caller's transaction."""
        return [PastEntrant(*one) for one in await run_queries.deployed_at(session, at)]

    async def owners(self) -> dict[str, Ownership]:
        """Read who owns each submission that is served or in progress."""
        async with self._database.read() as session:
            rows = await queries.accounts_by_status(session, *IN_PROGRESS, *SERVED)
        users = self._rewards.users(rows)
        return {
            row.id: Ownership(
                row.account_id,
                row.status in SERVED,
                row.status is Status.DEPLOYED,
                users.get(row.id),
                row.params.candidate_count,
            )
            for row in rows
        }

    async def params(
        self, session: AsyncSession, submission_ids: Collection[str]
    ) -> dict[str, GenerationParams]:
        """Read the generation parameters of each submission, within the caller's transaction."""
        return await queries.params(session, submission_ids)

    async def statuses(self, submission_ids: Collection[str]) -> dict[str, Status]:
        """Read the status of each submission; one that was deleted is left out."""
        async with self._database.read() as session:
            return await queries.statuses(session, submission_ids)

    async def developers(
        self, session: AsyncSession, submission_ids: Collection[str]
    ) -> dict[str, tuple[str, str]]:
        """Read the id and the name of each submission's developer, within the caller's transaction."""
        return await queries.developers(session, submission_ids)

    async def count_by_status(self) -> dict[str, int]:
        async with self._database.read() as session:
            counts = await queries.count_by_status(session)
            return {status.value: counts.get(status, 0) for status in {*Status, *counts}}

    async def oldest_queued(self) -> datetime | None:
        """Return since when the submission that has waited longest waits."""
        async with self._database.read() as session:
            return await queries.oldest_with_status(session, Status.QUEUED)

    async def needed_artifacts(self, since: datetime) -> set[str]:
        """Read the keys of all artifacts that may be served again.

        They are those of submissions, except of those torn down, and of those that failed or were cancelled before ``since``; of their redeploys and of
        the versions that a rollback would bring back; and what model servers hold, whatever their submissions say.
        """
        async with self._database.read() as session:
            keys = await queries.artifact_keys(session, since)
            keys |= await rollout_queries.artifact_keys(session)
        return keys | await self._deployments.artifact_keys()


def brief_of(row: SubmissionRow) -> SubmissionBrief:
    """Return the names and the owner of a row's submission."""
    return SubmissionBrief(**{one.name: getattr(row, one.name) for one in fields(SubmissionBrief)})


def _serving(row: SubmissionRow) -> ServingSubmission:
    assert row.artifact_key is not None, "a published submission has an artifact"
    return ServingSubmission(
        id=row.id,
        account_id=row.account_id,
        developer=row.developer,
        name=row.name,
        repo=row.repo,
        status=row.status,
        params=row.params,
        formatter=row.formatter,
        artifact_key=row.artifact_key,
        created_at=row.created_at,
        reward=row.reward,
        reward_formatter=row.reward_formatter,
        parameter_count=row.parameter_count,
    )
