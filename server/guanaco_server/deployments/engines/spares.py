"""Keeps servers without users: those of submissions that were torn down, and those that were started ahead of demand.

It also remembers which servers were asked for lately, so that the next one can be started ahead (``scaling/spares.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines import assignment
from guanaco_server.deployments.engines.servers import EngineServers
from guanaco_server.deployments.engines.specs import EngineOptions, deployment_name
from guanaco_server.deployments.tables import (
    DeploymentRow,
    EngineRow,
    Phase,
    ServerRequestRow,
    SpareServer,
)
from guanaco_server.deployments.versions import is_beside
from guanaco_server.runtime.clock import Clock

MOST_READ = 500  # more requests than that say nothing new


@dataclass(frozen=True)
class KeptServers:
    """Says whether servers without users may stay. Requests for servers are remembered for ``remembered_s``; 0 is not at all."""

    has_any: bool = False
    remembered_s: float = 0


class SpareServers:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        engine: EngineOptions,
        servers: EngineServers,
        kept: KeptServers,
    ) -> None:
        self._database = database
        self._clock = clock
        self._engine = engine
        self._servers = servers
        self._kept = kept

    async def list(self) -> list[EngineRow]:
        """Return the engines that stay without users."""
        async with self._database.read() as session:
            return [*await queries.spares(session)]

    def of(self, row: DeploymentRow) -> SpareServer | None:
        """Return the server of a deployment that ends as one without users; None if it is not to stay."""
        is_well = row.phase is Phase.READY and row.endpoints and row.trouble is None
        is_taken_over = not row.is_beside and row.wanted_replicas == 1
        if not (self._kept.has_any and is_well and is_taken_over):
            return None
        return Deployment.of(row).as_spare(self._clock.now())

    async def start_ahead(self, deployment: Deployment) -> None:
        """Start a server that no deployment uses yet. Whoever takes it before the end starts it instead.

        The same artifact joins it, unless an engine that is used is joined already.
        """

        async def add(session: AsyncSession) -> None:
            await assignment.lock(session)
            now, digest = self._clock.now(), assignment.engine_digest(deployment, self._engine)
            if digest is not None and await queries.open_engine(session, digest) is not None:
                digest = None
            session.add(
                EngineRow(
                    id=deployment.submission_id,
                    digest=digest,
                    run=deployment.run,
                    token=secrets.token_urlsafe(32),
                    made_at=now,
                    spare=deployment.as_spare(now, is_starting=True),
                )
            )

        await self._database.write_unit(add)
        await self._servers.start_spare(deployment)

    async def note_ready(self, engine: str) -> None:
        """Record that a server which was started ahead answers, unless somebody has taken it."""

        async def note(session: AsyncSession) -> None:
            await assignment.lock(session)
            row = await session.get(EngineRow, engine)
            if row is not None and row.spare is not None:
                row.spare = row.spare.model_copy(update={"is_starting": False})

        await self._database.write_unit(note)

    async def end(self, engine: str) -> None:
        """Stop a server without users, unless somebody has taken it meanwhile."""

        async def delete_row(session: AsyncSession) -> None:
            await assignment.lock(session)
            row = await session.get(EngineRow, engine)
            if row is not None and row.spare is not None:
                await session.delete(row)

        await self._database.write_unit(delete_row)
        await self._servers.stop_unwanted(deployment_name(engine))

    async def requested(self) -> Sequence[SpareServer]:
        """Return the servers that were asked for lately, the latest first."""
        async with self._database.read() as session:
            return await _requested_since(session, self._remembered_since())

    async def note_request(self, session: AsyncSession, deployment: Deployment) -> None:
        """Note that a server of its own was asked for, which one that waits could have been, within the caller's transaction."""
        is_alike = deployment.replicas == 1 and not is_beside(deployment.submission_id)
        if self._kept.remembered_s and is_alike:
            now = self._clock.now()
            await _note_request(session, deployment, now, self._remembered_since())

    def _remembered_since(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self._kept.remembered_s)


async def _note_request(
    session: AsyncSession, deployment: Deployment, now: datetime, forgotten: datetime
) -> None:
    """Note that a server was asked for, and remove the requests before ``forgotten``."""
    await session.execute(delete(ServerRequestRow).where(ServerRequestRow.at < forgotten))
    session.add(ServerRequestRow(at=now, server=deployment.as_spare(now)))


async def _requested_since(session: AsyncSession, at: datetime) -> Sequence[SpareServer]:
    """Read the servers that were asked for since then, the latest first."""
    found = select(ServerRequestRow.server).where(ServerRequestRow.at >= at)
    latest = found.order_by(ServerRequestRow.at.desc(), ServerRequestRow.id.desc())
    return (await session.scalars(latest.limit(MOST_READ))).all()
