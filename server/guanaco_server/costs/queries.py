"""Every query on intervals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.costs.tables import GpuIntervalRow


async def open_interval(
    session: AsyncSession, submission_id: str, server: str | None
) -> GpuIntervalRow | None:
    return await session.scalar(
        select(GpuIntervalRow).where(*_open(submission_id, server)).limit(1)
    )


async def open_of_engine(session: AsyncSession, engine: str) -> list[GpuIntervalRow]:
    """Read the open intervals of those that share an engine."""
    found = select(GpuIntervalRow).where(
        GpuIntervalRow.engine == engine, GpuIntervalRow.ended_at.is_(None)
    )
    return list((await session.scalars(found.order_by(GpuIntervalRow.id))).all())


async def add_tokens(
    session: AsyncSession, submission_id: str, server: str | None, count: float
) -> None:
    """Add weighted tokens to the open interval, if its GPUs are shared."""
    await session.execute(
        update(GpuIntervalRow)
        .where(*_open(submission_id, server), GpuIntervalRow.engine.is_not(None))
        .values(tokens=func.coalesce(GpuIntervalRow.tokens, 0.0) + count)
    )


async def add_busy(session: AsyncSession, engine: str, seconds: float) -> None:
    await session.execute(
        update(GpuIntervalRow)
        .where(GpuIntervalRow.engine == engine, GpuIntervalRow.ended_at.is_(None))
        .values(busy_s=func.coalesce(GpuIntervalRow.busy_s, 0.0) + seconds)
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
