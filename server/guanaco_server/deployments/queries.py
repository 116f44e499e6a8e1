"""Every query on deployments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import was_changed
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase
from guanaco_server.deployments.versions import MARK


async def by_submission(session: AsyncSession, submission_id: str) -> DeploymentRow | None:
    return await session.get(DeploymentRow, submission_id)


async def locked(session: AsyncSession, submission_id: str) -> DeploymentRow | None:
    """Lock the row until the transaction ends."""
    return await session.get(DeploymentRow, submission_id, with_for_update=True)


async def all_rows(session: AsyncSession) -> Sequence[DeploymentRow]:
    return (await session.scalars(select(DeploymentRow))).all()


async def of_engine(session: AsyncSession, engine: str) -> Sequence[DeploymentRow]:
    """Read the deployments that use this engine."""
    return (await session.scalars(select(DeploymentRow).where(_uses(engine)))).all()


async def others_of_engine(session: AsyncSession, row: DeploymentRow) -> Sequence[DeploymentRow]:
    """Read the other deployments that use the engine of this one."""
    others = DeploymentRow.submission_id != row.submission_id
    found = select(DeploymentRow).where(_uses(row.server_key), others)
    return (await session.scalars(found)).all()


async def is_used_by_others(session: AsyncSession, key: str) -> bool:
    """Return whether a deployment of another key uses the model server that is named after this one."""
    found = select(DeploymentRow.submission_id).where(DeploymentRow.server == key).limit(1)
    return await session.scalar(found.where(DeploymentRow.submission_id != key)) is not None


async def artifact_keys(session: AsyncSession) -> set[str]:
    """Read the artifacts of all deployments, of the servers of adapters, and of servers without users."""
    row = DeploymentRow
    rows = await session.execute(select(row.artifact_key, row.base_key).distinct())
    keys = {key for pair in rows for key in pair if key is not None}
    return keys | {engine.spare.artifact_key for engine in await spares(session) if engine.spare}


async def open_engine(session: AsyncSession, digest: str) -> EngineRow | None:
    return await session.scalar(select(EngineRow).where(EngineRow.digest == digest))


async def spares(session: AsyncSession) -> Sequence[EngineRow]:
    """Read the engines that stay without users."""
    return [row for row in await session.scalars(select(EngineRow)) if row.spare is not None]


async def remove_engine(session: AsyncSession, engine: str) -> None:
    await session.execute(delete(EngineRow).where(EngineRow.id == engine))


def _uses(engine: str) -> ColumnElement[bool]:
    is_named_so = and_(DeploymentRow.server.is_(None), DeploymentRow.submission_id == engine)
    return or_(DeploymentRow.server == engine, is_named_so)


async def ready(session: AsyncSession) -> Sequence[DeploymentRow]:
    found = select(DeploymentRow).where(DeploymentRow.phase == Phase.READY)
    return (await session.scalars(found)).all()


async def troubled(session: AsyncSession, trouble: str) -> Sequence[DeploymentRow]:
    """Read the deployments that this keeps from being served."""
    found = select(DeploymentRow).where(DeploymentRow.trouble == trouble)
    return (await session.scalars(found.order_by(DeploymentRow.submission_id))).all()


async def taking(session: AsyncSession) -> Sequence[DeploymentRow]:
    """Read the versions beside that take conversations."""
    ready = DeploymentRow.phase == Phase.READY
    found = select(DeploymentRow).where(DeploymentRow.share.is_not(None), ready)
    return (await session.scalars(found)).all()


async def keys_beside(session: AsyncSession, submission_id: str) -> Sequence[str]:
    """Read the keys of the versions beside this submission's own."""
    first = f"{submission_id}{MARK}"
    key = DeploymentRow.submission_id
    return (
        await session.scalars(select(key).where(func.substr(key, 1, len(first)) == first))
    ).all()


async def remove(session: AsyncSession, submission_id: str) -> None:
    await session.execute(delete(DeploymentRow).where(DeploymentRow.submission_id == submission_id))


SERVER_COLUMNS = (
    "run", "artifact_key", "base_key", "max_model_tokens", "quantization", "recipe", "developer", "phase", "endpoints", "endpoint",
    "restarts", "gpu_count", "applied_replicas", "capacity", "start_s", "wake_s", "region",
    "trouble", "problem", "unserved_since", "queue",
)  # fmt: skip


def copy_server(source: DeploymentRow, target: DeploymentRow) -> None:
    """Let the target stand for the server of the source."""
    for name in SERVER_COLUMNS:
        setattr(target, name, getattr(source, name))
    target.server = source.server_key


def swap_servers(one: DeploymentRow, other: DeploymentRow) -> None:
    """Let each of two rows stand for the server of the other; neither is beside with a share any more."""
    kept = {name: getattr(one, name) for name in SERVER_COLUMNS}
    key = one.server_key
    copy_server(other, one)
    for name, value in kept.items():
        setattr(other, name, value)
    other.server = key
    one.share = one.takes_since = other.share = other.takes_since = None


async def note_traffic(session: AsyncSession, submission_id: str, at: datetime) -> None:
    await _update(session, submission_id, (), last_traffic_at=at)


async def add_tokens(session: AsyncSession, submission_id: str, count: float) -> None:
    used = func.coalesce(DeploymentRow.used_tokens, 0.0) + count
    await _update(session, submission_id, (), used_tokens=used)


async def put_to_sleep(
    session: AsyncSession, submission_id: str, unused_since: datetime, now: datetime
) -> bool:
    """Put a deployment to sleep that is ready and was not used after ``unused_since``."""
    is_unused = or_(
        DeploymentRow.last_traffic_at.is_(None), DeploymentRow.last_traffic_at <= unused_since
    )
    return await _update(
        session,
        submission_id,
        (DeploymentRow.phase == Phase.READY, is_unused),
        phase=Phase.SLEEPING,
        endpoints=[],
        endpoint=None,
        wanted_replicas=1,
        applied_replicas=1,
        yields_to=None,
        unserved_since=None,
        updated_at=now,
    )


async def wake(session: AsyncSession, submission_id: str, now: datetime) -> bool:
    """Wake a deployment that sleeps, and note that it was used just now."""
    return await _update(
        session,
        submission_id,
        (DeploymentRow.phase == Phase.SLEEPING,),
        phase=Phase.WAKING,
        last_traffic_at=now,
        updated_at=now,
    )


async def admit(
    session: AsyncSession, submission_id: str, from_phase: Phase, to_phase: Phase, now: datetime
) -> bool:
    return await _update(
        session,
        submission_id,
        (DeploymentRow.phase == from_phase,),
        phase=to_phase,
        waits_for=None,
        restarts=0,
        updated_at=now,
    )


async def note_endpoints(
    session: AsyncSession, submission_id: str, endpoints: Sequence[str], unserved: datetime | None
) -> None:
    """Write down the endpoints of a deployment that is ready, and since when it has none."""
    await _update(
        session,
        submission_id,
        (DeploymentRow.phase == Phase.READY,),
        endpoints=list(endpoints),
        endpoint=next(iter(endpoints), None),
        unserved_since=unserved,
    )


async def note(session: AsyncSession, submission_id: str, **columns: Any) -> None:
    """Write columns that do not change the phase."""
    await _update(session, submission_id, (), **columns)


async def _update(
    session: AsyncSession,
    submission_id: str,
    guards: Sequence[ColumnElement[bool]],
    **columns: Any,
) -> bool:
    changed = await session.execute(
        update(DeploymentRow)
        .where(DeploymentRow.submission_id == submission_id, *guards)
        .values(**columns)
        .execution_options(synchronize_session=False)
    )
    return was_changed(changed)
