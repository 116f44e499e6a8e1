"""Every query on workers and leases. Each guarded write says whether it found things as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import was_changed
from guanaco_server.database.tables import Table
from guanaco_server.workers.tables import LeaseRow, WorkerRow


async def enter(
    session: AsyncSession, executor_id: str, at: datetime, claimed_before: datetime
) -> bool:
    """Be a living worker from now on; False while a survivor is taking over what this one left before."""
    statement = (
        _insert(session, WorkerRow)
        .values(executor_id=executor_id, started_at=at, seen_at=at)
        .on_conflict_do_update(
            index_elements=["executor_id"],
            set_={"started_at": at, "seen_at": at, "heir": None, "claimed_at": None},
            where=or_(WorkerRow.heir.is_(None), WorkerRow.claimed_at < claimed_before),
        )
        .returning(WorkerRow.executor_id)
    )
    return await session.scalar(statement) is not None


async def beat(session: AsyncSession, executor_id: str, at: datetime) -> bool:
    """Record that the worker lives. Return False if another has taken over, or is about to."""
    statement = (
        update(WorkerRow)
        .where(WorkerRow.executor_id == executor_id, WorkerRow.claimed_at.is_(None))
        .values(seen_at=at)
    )
    return was_changed(await session.execute(statement))


async def silent(
    session: AsyncSession, seen_before: datetime, claimed_before: datetime
) -> Sequence[str]:
    """Return the workers that nobody has heard of since, and that nobody is taking over."""
    is_silent = _is_silent(seen_before, claimed_before)
    return (await session.scalars(select(WorkerRow.executor_id).where(is_silent))).all()


async def claim(
    session: AsyncSession,
    executor_id: str,
    heir: str,
    at: datetime,
    seen_before: datetime,
    claimed_before: datetime,
) -> bool:
    """Take it upon oneself to take over a silent worker's work; one of two may."""
    statement = (
        update(WorkerRow)
        .where(WorkerRow.executor_id == executor_id, _is_silent(seen_before, claimed_before))
        .values(heir=heir, claimed_at=at)
    )
    return was_changed(await session.execute(statement))


async def end_claim(
    session: AsyncSession, executor_id: str, heir: str, seen_before: datetime
) -> None:
    """End the take-over: the worker may enter again. A worker last heard of before that is forgotten."""
    is_ours = and_(WorkerRow.executor_id == executor_id, WorkerRow.heir == heir)
    await session.execute(delete(WorkerRow).where(is_ours, WorkerRow.seen_at < seen_before))
    await session.execute(update(WorkerRow).where(is_ours).values(heir=None))


async def executors(session: AsyncSession) -> Sequence[str]:
    """Every worker that lives, or that a survivor takes over from."""
    return (await session.scalars(select(WorkerRow.executor_id))).all()


async def count_living(session: AsyncSession, seen_after: datetime) -> int:
    statement = select(func.count()).where(WorkerRow.seen_at >= seen_after)
    return await session.scalar(statement) or 0


async def newest_beat(session: AsyncSession) -> datetime | None:
    """Return when any worker was last heard of; None if none ever was."""
    return await session.scalar(select(func.max(WorkerRow.seen_at)))


async def take_lease(
    session: AsyncSession, name: str, holder: str, at: datetime, until: datetime
) -> bool:
    """Take or renew a lease; False while another holds it."""
    statement = (
        _insert(session, LeaseRow)
        .values(name=name, holder=holder, expires_at=until)
        .on_conflict_do_update(
            index_elements=["name"],
            set_={"holder": holder, "expires_at": until},
            where=or_(LeaseRow.holder == holder, LeaseRow.expires_at < at),
        )
        .returning(LeaseRow.name)
    )
    return await session.scalar(statement) is not None


async def release_lease(session: AsyncSession, name: str, holder: str) -> None:
    await session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))


def _is_silent(seen_before: datetime, claimed_before: datetime) -> ColumnElement[bool]:
    is_unclaimed = or_(WorkerRow.claimed_at.is_(None), WorkerRow.claimed_at < claimed_before)
    return and_(WorkerRow.seen_at < seen_before, is_unclaimed)


def _insert(session: AsyncSession, table: type[Table]) -> postgresql.Insert | sqlite.Insert:
    dialect = session.get_bind().dialect.name
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)
