"""Changes a submission's status; nothing else does. These transitions are allowed:

    queued → the statuses of the stages, forwards (guanaco.submissions.Stage) → deployed ⇄ inactive
      any of those before deployed → failed, cancelled
      deployed, inactive → failed (its model server kept dying)
      deployed, inactive, failed, cancelled → torn_down
      failed, cancelled, torn_down → queued (redeploy)
      deployed, inactive stay so while they are redeployed (rollouts/)

Each change is an event, written in the same transaction. The guard is in the UPDATE itself, so that of
two writers one loses with IllegalTransition and nothing is overwritten.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import IllegalTransition, SubmissionNotFound
from guanaco.submissions import PIPELINE_STATUSES, EventKind, Failure, Level, Stage, Status
from guanaco_server.database.database import was_changed
from guanaco_server.submissions import queries
from guanaco_server.submissions.tables import SubmissionEventRow, SubmissionRow

SERVED = (Status.DEPLOYED, Status.INACTIVE)
ENDED = (Status.FAILED, Status.CANCELLED, Status.TORN_DOWN)

SOURCES: dict[Status, frozenset[Status]] = {
    status: frozenset(PIPELINE_STATUSES[:place]) for place, status in enumerate(PIPELINE_STATUSES)
} | {
    Status.QUEUED: frozenset((*SERVED, *ENDED)),
    Status.DEPLOYED: frozenset((PIPELINE_STATUSES[-1], Status.INACTIVE)),
    Status.INACTIVE: frozenset({Status.DEPLOYED}),
    Status.FAILED: frozenset((*PIPELINE_STATUSES, *SERVED)),
    Status.CANCELLED: frozenset(PIPELINE_STATUSES),
    Status.TORN_DOWN: frozenset((*SERVED, Status.FAILED, Status.CANCELLED)),
}


async def transition(
    session: AsyncSession,
    submission_id: str,
    to: Status,
    *,
    at: datetime,
    sources: frozenset[Status] | None = None,
    failure: Failure | None = None,
    **columns: Any,
) -> SubmissionRow:
    """Move a submission to a status and record the event. ``sources`` narrows the allowed statuses to come from."""
    allowed = SOURCES[to] if sources is None else SOURCES[to] & sources
    conditions = [SubmissionRow.id == submission_id, SubmissionRow.status.in_(allowed)]
    if to is Status.QUEUED:
        conditions.append(SubmissionRow.deleted_at.is_(None))
    if to is not Status.TORN_DOWN:  # what is torn down after a failure still tells why it failed
        columns["failure"] = failure
    changed = await session.execute(
        update(SubmissionRow)
        .where(*conditions)
        .values(status=to, updated_at=at, **columns)
        .execution_options(synchronize_session=False)
    )
    row = await session.get(SubmissionRow, submission_id, populate_existing=True)
    if row is None:
        raise SubmissionNotFound(submission_id)
    if not was_changed(changed):
        raise IllegalTransition(submission_id, row.status, to)
    if not queries.may_read_the_hub(to, row.base_repo):
        await queries.delete_hub_token(session, submission_id)
    await append_event(
        session,
        submission_id,
        EventKind.STATUS,
        failure.detail if failure else f"Status is now {to}.",
        at=at,
        level=Level.ERROR if failure else Level.INFO,
        data={"status": to} | ({"failure": failure.model_dump(mode="json")} if failure else {}),
    )
    return row


async def append_event(
    session: AsyncSession,
    submission_id: str,
    kind: EventKind,
    message: str,
    *,
    at: datetime,
    stage: Stage | None = None,
    level: Level = Level.INFO,
    data: dict[str, Any] | None = None,
) -> None:
    """Add an event with the next number. The counter's row lock gives numbers without gaps, in commit order."""
    seq = await session.scalar(
        update(SubmissionRow)
        .where(SubmissionRow.id == submission_id)
        .values(event_count=SubmissionRow.event_count + 1)
        .returning(SubmissionRow.event_count)
        .execution_options(synchronize_session=False)
    )
    if seq is None:
        raise SubmissionNotFound(submission_id)
    session.add(
        SubmissionEventRow(
            submission_id=submission_id,
            seq=seq,
            at=at,
            kind=kind,
            stage=stage,
            level=level,
            message=message,
            data=data or {},
        )
    )
    await session.flush()
