"""A submission as its developer reads it, from its rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import Rollout, StageRun, Submission, Unserved
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.submissions.aliases import queries as alias_queries
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.rollouts.queries import rollout as newest_rollout
from guanaco_server.submissions.runs import queries as run_queries
from guanaco_server.submissions.tables import RolloutRow, StageRunRow, SubmissionRow

NOT_COLUMNS = {
    "stages",
    "rollout",
    "unserved",
    "is_asleep",
    "no_worker_since",
    "aliases",
    "tags",
}  # fields of a submission that are no columns of its row as they are


def read_submission(
    row: SubmissionRow,
    stages: Sequence[StageRunRow] = (),
    rollout: RolloutRow | None = None,
    aliases: Sequence[str] = (),
    unserved: Unserved | None = None,
    *,
    is_asleep: bool = False,
) -> Submission:
    columns = {name: getattr(row, name) for name in Submission.model_fields.keys() - NOT_COLUMNS}
    return Submission(
        **columns,
        aliases=list(aliases),
        tags=row.tags or [],
        rollout=_read_rollout(rollout) if rollout else None,
        unserved=unserved,
        is_asleep=is_asleep,
        stages=[_read_stage(stage) for stage in stages],
    )


async def read_whole(
    deployments: DeploymentService, session: AsyncSession, row: SubmissionRow
) -> Submission:
    """Read a submission with its stages, its newest rollout, its aliases, and why it is not served."""
    stages = await run_queries.stage_runs(session, row.id)
    rollout = await newest_rollout(session, row.id)
    aliases = [str(alias) for alias in await alias_queries.of_submission(session, row.id)]
    unserved, is_asleep = None, False
    if row.status in SERVED:
        unserved, is_asleep = await deployments.standing_within(session, row.id)
    return read_submission(row, stages, rollout, aliases, unserved, is_asleep=is_asleep)


def _read_rollout(row: RolloutRow) -> Rollout:
    return Rollout(**{name: getattr(row, name) for name in Rollout.model_fields})


def _read_stage(row: StageRunRow) -> StageRun:
    return StageRun(**{name: getattr(row, name) for name in StageRun.model_fields})
