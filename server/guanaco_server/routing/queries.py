"""Every query on recorded snapshots."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.routing.snapshot import Snapshot
from guanaco_server.routing.tables import SnapshotRow

NOTED_EVERY = timedelta(hours=1)  # so that not each conversation writes that its snapshot is used
DROPPED_AT_ONCE = 10


async def snapshot(session: AsyncSession, digest: str) -> Snapshot | None:
    return await session.scalar(select(SnapshotRow.snapshot).where(SnapshotRow.digest == digest))


async def keep_snapshot(
    session: AsyncSession, taken: Snapshot, now: datetime, kept: timedelta
) -> None:
    """Store the snapshot once, also when two processes come with it. Each new one deletes some that were not used for long."""
    known = select(SnapshotRow.used_at).where(SnapshotRow.digest == taken.digest)
    used_at = await session.scalar(known)
    if used_at is not None and used_at > now - NOTED_EVERY:
        return
    if used_at is None:
        await _drop_unused(session, now - kept)
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    await session.execute(
        insert(SnapshotRow)
        .values(digest=taken.digest, snapshot=taken, used_at=now)
        .on_conflict_do_update(index_elements=["digest"], set_={"created_at": now})
    )


async def _drop_unused(session: AsyncSession, since: datetime) -> None:
    """Leave to another transaction what it is dropping."""
    unused = (
        select(SnapshotRow.digest)
        .where(SnapshotRow.used_at < since)
        .order_by(SnapshotRow.used_at)
        .limit(DROPPED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    digests = list(await session.scalars(unused))
    if digests:
        await session.execute(delete(SnapshotRow).where(SnapshotRow.digest.in_(digests)))
