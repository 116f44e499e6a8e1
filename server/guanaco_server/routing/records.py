"""Reads recorded snapshots for other rooms, ready to say with what chances a choice was made."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.routing import queries
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Pool, policy_of


async def recorded_pool(session: AsyncSession, digest: str) -> Pool | None:
    """Return the pool of a snapshot; None if it is no longer kept, or if only a newer version knows its rule."""
    snapshot = await queries.snapshot(session, digest)
    if snapshot is None or snapshot.rule.kind.is_unknown:
        return None
    return Pool(snapshot, await policy_of(snapshot, Posterior()))
