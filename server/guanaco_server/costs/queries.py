"""Every query on intervals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.costs.tables import GpuIntervalRow


async def open_interval(
    session: AsyncSession, submission_id: str, server: str | None
) -> GpuIntervalRow | None:
    return await session.scalar(
        select(GpuIntervalRow).where(*_open(submission_id, server)).limit(1)
    )


async def close(
    session: AsyncSession, submission_id: str, server: str | None, at: datetime
) -> None:
    await session.execute(
        update(GpuIntervalRow).where(*_open(submission_id, server)).values(ended_at=at)
    )


def _open(submission_id: str, server: str | None) -> tuple[ColumnElement[bool], ...]:
    return (
        GpuIntervalRow.submission_id == submission_id,
        GpuIntervalRow.server.is_not_distinct_from(server),
        GpuIntervalRow.ended_at.is_(None),
    )


async def of_submission(session: AsyncSession, submission_id: str) -> Sequence[GpuIntervalRow]:
    return (
        await session.scalars(
            select(GpuIntervalRow)
            .where(GpuIntervalRow.submission_id == submission_id)
            .order_by(GpuIntervalRow.began_at)
        )
    ).all()


async def between(
    session: AsyncSession, since: datetime, until: datetime, developer: str | None = None
) -> Sequence[GpuIntervalRow]:
    """Return the intervals that were open at some time from ``since`` to ``until``."""
    statement = select(GpuIntervalRow).where(
        GpuIntervalRow.began_at < until,
        or_(GpuIntervalRow.ended_at.is_(None), GpuIntervalRow.ended_at > since),
    )
    if developer is not None:
        statement = statement.where(GpuIntervalRow.developer == developer)
    return (await session.scalars(statement)).all()
