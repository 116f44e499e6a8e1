"""Every query on rollouts, and on what a canary's two versions have shown."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, case, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from guanaco.submissions import RolloutPhase, Status
from guanaco_server.database.bulk import BulkInsert, Rows
from guanaco_server.deployments.versions import Arm, ServedVersion
from guanaco_server.statistics.buckets import MOST
from guanaco_server.statistics.sequential import Proportion
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.queries import status_of
from guanaco_server.submissions.tables import CanaryConversationRow, RolloutRow, SubmissionRow

ENDED = (RolloutPhase.DONE, RolloutPhase.FAILED, RolloutPhase.CANCELLED)
NOT_COMPARED = -1  # the bucket of a first reply from which it was learnt what is slow


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
    """Return the version that the newest redeploy which was carried out has replaced. A move to another server has replaced none."""
    return await session.scalar(
        select(RolloutRow.replaced)
        .where(
            RolloutRow.submission_id == submission_id,
            RolloutRow.phase == RolloutPhase.DONE,
            or_(RolloutRow.because.is_(None), RolloutRow.restores.is_(None)),
        )
        .order_by(RolloutRow.run.desc())
        .limit(1)
    )


async def artifact_keys(session: AsyncSession) -> set[str]:
    """Read the artifacts of redeploys that are under way, and of the versions that a rollback would bring back."""
    row, later = RolloutRow, aliased(RolloutRow)
    has_replaced = or_(later.because.is_(None), later.restores.is_(None))
    newest = select(func.max(later.run)).where(
        later.submission_id == row.submission_id, later.phase == RolloutPhase.DONE, has_replaced
    )
    rollouts = await session.execute(
        select(row.made, row.restores, row.replaced)
        .join(SubmissionRow, SubmissionRow.id == row.submission_id)
        .where(
            SubmissionRow.status.in_(SERVED),
            or_(row.phase.not_in(ENDED), row.run == newest.scalar_subquery()),
        )
    )
    keys = set[str]()
    for made, *versions in rollouts:
        keys |= {made.artifact_key} if made else set()
        keys = keys.union(*(version.artifact_keys for version in versions if version))
    return keys


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


async def add_shown(session: AsyncSession, rows: Rows) -> None:
    """Enter what conversations have shown. A failure stays, and so does the first reply's wait."""
    if not rows:
        return
    row, keys = CanaryConversationRow, ("submission_id", "run", "conversation_id")
    # In the same order everywhere, so that no two gateways wait for each other.
    ordered = sorted(rows, key=lambda one: tuple(one[key] for key in keys))
    bulk = BulkInsert(session, row, ordered)
    new = bulk.statement.excluded
    together = {
        "has_failed": or_(row.has_failed, new.has_failed),
        "first_bucket": func.coalesce(row.first_bucket, new.first_bucket),
    }
    statement = bulk.statement.on_conflict_do_update(index_elements=keys, set_=together)
    await session.execute(statement, bulk.parameters)


async def first_waits(session: AsyncSession, arm: Arm) -> list[int]:
    """Return how many conversations of a version had a first reply in each bucket."""
    row = CanaryConversationRow
    rows = await session.execute(
        select(row.first_bucket, func.count())
        .where(*_of(arm.submission_id, arm.run), row.is_new.is_(arm.is_new), row.first_bucket >= 0)
        .group_by(row.first_bucket)
    )
    found = {bucket: count for bucket, count in rows if bucket is not None}
    return [found.get(bucket, 0) for bucket in range(max(found, default=-1) + 1)]


async def forget_waits(session: AsyncSession, submission_id: str, run: int) -> None:
    """Leave the first replies until now out of the comparison."""
    row = CanaryConversationRow
    await session.execute(
        update(row)
        .where(*_of(submission_id, run), row.first_bucket.is_not(None))
        .values(first_bucket=NOT_COMPARED)
        .execution_options(synchronize_session=False)
    )


async def shown(
    session: AsyncSession, arm: Arm, slow_from: int | None
) -> tuple[Proportion, Proportion | None]:
    """Count a version's conversations: those that failed, and those that began slowly once it is known what is slow."""
    row = CanaryConversationRow
    limit = MOST if slow_from is None else slow_from
    total, failed, timed, slow = (
        await session.execute(
            select(
                func.count(),
                func.sum(case((row.has_failed, 1), else_=0)),
                func.sum(case((row.first_bucket >= 0, 1), else_=0)),
                func.sum(case((row.first_bucket >= limit, 1), else_=0)),
            ).where(*_of(arm.submission_id, arm.run), row.is_new.is_(arm.is_new))
        )
    ).one()
    is_slow = None if slow_from is None else Proportion(slow or 0, timed or 0)
    return Proportion(failed or 0, total), is_slow


async def forget_shown(session: AsyncSession, submission_id: str, run: int) -> None:
    """Delete the conversations of a canary that has ended."""
    await session.execute(
        delete(CanaryConversationRow)
        .where(*_of(submission_id, run))
        .execution_options(synchronize_session=False)
    )


def _of(submission_id: str, run: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    row = CanaryConversationRow
    return row.submission_id == submission_id, row.run == run


async def unmerged_adapters(session: AsyncSession) -> Sequence[SubmissionRow]:
    """Return each live LoRA adapter that is not known to be merged."""
    row = SubmissionRow
    rows = await session.scalars(
        select(row)
        .where(
            row.status == Status.DEPLOYED,
            row.base_repo.is_not(None),
            row.is_promoted.is_(False),
            row.merged_because.is_(None),
        )
        .order_by(row.id)
    )
    return rows.all()


async def newest_promotions(session: AsyncSession) -> dict[str, RolloutRow]:
    """Return the newest redeploy of each submission that was to merge it into its base."""
    rows = await session.scalars(
        select(RolloutRow).where(RolloutRow.promotes.is_(True)).order_by(RolloutRow.run)
    )
    return {row.submission_id: row for row in rows}
