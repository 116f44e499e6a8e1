"""Every query on artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.artifacts.tables import ArtifactRow
from guanaco_server.database.database import was_changed

Insert = postgresql.Insert | sqlite.Insert


async def touch(session: AsyncSession, key: str, at: datetime) -> bool:
    """Note that the artifact is needed now, be it there or not; False while one of that key is being deleted."""
    statement = _needed(session, key=key, needed_at=at, size_bytes=0).returning(ArtifactRow.key)
    return await session.scalar(statement) is not None


async def touch_all(session: AsyncSession, keys: Iterable[str], at: datetime) -> None:
    """Touch many artifacts at once."""
    rows = [{"key": key, "needed_at": at, "size_bytes": 0} for key in sorted(keys)]
    if rows:
        connection = await session.connection()
        await connection.execute(_needed(session), rows)


async def note_sizes(session: AsyncSession, sizes: Mapping[str, int], at: datetime) -> None:
    """Sizes of artifacts; one that was not known counts as needed now."""
    insert = _insert(session)
    statement = insert.on_conflict_do_update(
        index_elements=["key"], set_={"size_bytes": insert.excluded.size_bytes}
    )
    rows = [{"key": key, "needed_at": at, "size_bytes": size} for key, size in sizes.items()]
    if rows:
        connection = await session.connection()
        await connection.execute(statement, rows)


async def measured(session: AsyncSession) -> set[str]:
    """Read the keys of artifacts whose size is known."""
    return set(await session.scalars(select(ArtifactRow.key).where(ArtifactRow.size_bytes > 0)))


async def stored(session: AsyncSession, keys: Iterable[str]) -> set[str]:
    """Read which of these artifacts are there, or are being deleted."""
    return set(await session.scalars(select(ArtifactRow.key).where(ArtifactRow.key.in_(keys))))


async def expired(session: AsyncSession, needed_before: datetime) -> Sequence[str]:
    """Read the keys of artifacts that nobody has needed since then, and that nobody is deleting."""
    return (await session.scalars(select(ArtifactRow.key).where(_is_expired(needed_before)))).all()


async def abandoned(session: AsyncSession, doomed_before: datetime) -> Sequence[str]:
    """Read the keys of artifacts whose deletion began before that time and has not ended."""
    is_abandoned = ArtifactRow.doomed_at < doomed_before
    return (await session.scalars(select(ArtifactRow.key).where(is_abandoned))).all()


async def claim_deletion(
    session: AsyncSession, key: str, at: datetime, needed_before: datetime
) -> bool:
    """Claim the deletion of an expired artifact. One of two callers gets it; neither does if it was touched meanwhile."""
    return await _set_doomed(session, key, at, _is_expired(needed_before))


async def take_over(session: AsyncSession, key: str, at: datetime, doomed_before: datetime) -> bool:
    """Claim the deletion of an abandoned artifact. Only one of two callers gets it."""
    return await _set_doomed(session, key, at, ArtifactRow.doomed_at < doomed_before)


async def remove(session: AsyncSession, key: str, doomed_at: datetime) -> int:
    """Forget an artifact that whoever doomed it at that time has deleted; its size."""
    statement = (
        delete(ArtifactRow)
        .where(ArtifactRow.key == key, ArtifactRow.doomed_at == doomed_at)
        .returning(ArtifactRow.size_bytes)
    )
    return await session.scalar(statement) or 0


async def _set_doomed(
    session: AsyncSession, key: str, at: datetime, condition: ColumnElement[bool]
) -> bool:
    statement = update(ArtifactRow).where(ArtifactRow.key == key, condition).values(doomed_at=at)
    return was_changed(await session.execute(statement))


def _is_expired(needed_before: datetime) -> ColumnElement[bool]:
    return and_(ArtifactRow.doomed_at.is_(None), ArtifactRow.needed_at < needed_before)


def _needed(session: AsyncSession, **values: str | int | datetime) -> Insert:
    insert = _insert(session).values(**values) if values else _insert(session)
    return insert.on_conflict_do_update(
        index_elements=["key"],
        set_={"needed_at": insert.excluded.needed_at},
        where=ArtifactRow.doomed_at.is_(None),
    )


def _insert(session: AsyncSession) -> Insert:
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return (postgresql.insert if is_postgresql else sqlite.insert)(ArtifactRow)
