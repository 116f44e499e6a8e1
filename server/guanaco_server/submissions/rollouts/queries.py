"""Every query on rollouts, and on what a canary's two versions have shown."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import RolloutPhase, Status
from guanaco_server.deployments.versions import Arm, ServedVersion
from guanaco_server.statistics.buckets import added
from guanaco_server.submissions.queries import by_id_locked, status_of
from guanaco_server.submissions.tables import CanaryCountRow, RolloutRow, SubmissionRow


async def rollout(session: AsyncSession, submission_id: str) -> RolloutRow | None:
    """Read the newest rollout of a submission."""
    return await session.scalar(
        select(RolloutRow)
        .where(RolloutRow.submission_id == submission_id)
        .order_by(RolloutRow.run.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )


async def replaced_version(session: AsyncSession, submission_id: str) -> ServedVersion | None:
    """Return the version that the newest redeploy which was carried out has replaced."""
    return await session.scalar(
        select(RolloutRow.replaced)
        .where(
            RolloutRow.submission_id == submission_id,
            RolloutRow.phase == RolloutPhase.DONE,
        )
        .order_by(RolloutRow.run.desc())
        .limit(1)
    )


async def rollouts_in(session: AsyncSession, *phases: RolloutPhase) -> Sequence[RolloutRow]:
    return (await session.scalars(select(RolloutRow).where(RolloutRow.phase.in_(phases)))).all()


async def is_in_progress(session: AsyncSession, submission_id: str) -> bool | None:
    """Tell whether the pipeline works on it, or a redeploy is under way; None if there is no such submission."""
    status = await status_of(session, submission_id)
    if status is None:
        return None
    newest = await rollout(session, submission_id)
    if newest is not None and newest.phase is RolloutPhase.SHIFTING:
        return newest.canary_s is None  # nobody waits for a canary
    is_rolling = newest is not None and newest.phase.is_in_progress
    return status.is_in_progress or is_rolling


async def shown(session: AsyncSession, arm: Arm) -> CanaryCountRow | None:
    key = (arm.submission_id, arm.run, arm.is_new)
    return await session.get(CanaryCountRow, key, populate_existing=True)


async def add_shown(
    session: AsyncSession, arm: Arm, replies: int, faults: int, waits: Sequence[int]
) -> None:
    """Add to what a version has shown. The submission's row is locked, so that no two gateways add at once."""
    await by_id_locked(session, arm.submission_id)
    row = await shown(session, arm)
    if row is None:
        row = CanaryCountRow(
            submission_id=arm.submission_id,
            run=arm.run,
            is_new=arm.is_new,
            replies=0,
            faults=0,
            waits=[],
        )
        session.add(row)
    row.replies += replies
    row.faults += faults
    row.waits = added(row.waits, waits)


async def unmerged_adapters(session: AsyncSession) -> Sequence[tuple[str, str]]:
    """Return the id and the developer of each live LoRA adapter that was not promoted."""
    row = SubmissionRow
    rows = await session.execute(
        select(row.id, row.developer)
        .where(
            row.status == Status.DEPLOYED,
            row.base_repo.is_not(None),
            row.is_promoted.is_(False),
        )
        .order_by(row.id)
    )
    return [(submission_id, developer) for submission_id, developer in rows]
