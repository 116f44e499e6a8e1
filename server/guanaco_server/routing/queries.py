"""Every query on recorded snapshots."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.routing.snapshot import Snapshot
from guanaco_server.routing.tables import SnapshotRow


async def snapshot(session: AsyncSession, digest: str) -> Snapshot | None:
    return await session.scalar(select(SnapshotRow.snapshot).where(SnapshotRow.digest == digest))


async def keep_snapshot(session: AsyncSession, taken: Snapshot, now: datetime) -> None:
    """Once, also when two processes come with it."""
    known = select(SnapshotRow.digest).where(SnapshotRow.digest == taken.digest)
    if await session.scalar(known) is not None:
        return
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    await session.execute(
        insert(SnapshotRow)
        .values(digest=taken.digest, snapshot=taken, created_at=now)
        .on_conflict_do_nothing(index_elements=["digest"])
    )
