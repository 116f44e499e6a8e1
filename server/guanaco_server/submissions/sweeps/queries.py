"""Every query on sweeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import (
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.submissions.tables import (
    SubmissionRow,
    SweepRow,
)

MAX_SWEEPS = 100  # in a list


async def sweep(session: AsyncSession, sweep_id: str) -> SweepRow | None:
    return await session.get(SweepRow, sweep_id)


async def by_idempotency_key(session: AsyncSession, account_id: str, key: str) -> SweepRow | None:
    return await session.scalar(
        select(SweepRow).where(SweepRow.account_id == account_id, SweepRow.idempotency_key == key)
    )


async def newest(session: AsyncSession, account_id: str | None) -> Sequence[SweepRow]:
    """Read the newest sweeps of an account, or of all."""
    statement = select(SweepRow).order_by(SweepRow.created_at.desc(), SweepRow.id.desc())
    if account_id is not None:
        statement = statement.where(SweepRow.account_id == account_id)
    return (await session.scalars(statement.limit(MAX_SWEEPS))).all()


async def submissions_of(
    session: AsyncSession, sweep_ids: Collection[str]
) -> Sequence[SubmissionRow]:
    """Read the submissions of these sweeps, each sweep's in its order."""
    if not sweep_ids:
        return []
    statement = select(SubmissionRow).where(
        SubmissionRow.sweep.in_(sweep_ids), SubmissionRow.deleted_at.is_(None)
    )
    return (await session.scalars(statement.order_by(SubmissionRow.sweep_place))).all()
