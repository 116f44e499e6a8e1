"""The model servers that were asked for lately, so that the next one can be started ahead (``scaling/spares.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.tables import ServerRequestRow, SpareServer

MOST_READ = 500  # more requests than that say nothing new


async def note(
    session: AsyncSession, deployment: Deployment, now: datetime, forgotten: datetime
) -> None:
    """Note that a server was asked for, and remove the requests before ``forgotten``."""
    await session.execute(delete(ServerRequestRow).where(ServerRequestRow.at < forgotten))
    session.add(ServerRequestRow(at=now, server=deployment.as_spare(now)))


async def since(session: AsyncSession, at: datetime) -> Sequence[SpareServer]:
    """Read the servers that were asked for since then, the latest first."""
    found = select(ServerRequestRow.server).where(ServerRequestRow.at >= at)
    latest = found.order_by(ServerRequestRow.at.desc(), ServerRequestRow.id.desc())
    return (await session.scalars(latest.limit(MOST_READ))).all()
