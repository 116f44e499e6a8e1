"""The machines of the cluster whose caches hold an artifact, as far as servers of it have run there lately."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import ArtifactMachineRow
from guanaco_server.runtime.clock import Clock

MOST_NAMED = 8  # of those where it ran last; one that has removed the artifact costs a download
KEPT = timedelta(days=7)
NOTED_AGAIN = timedelta(hours=1)


class ArtifactMachines:
    """Notes where artifacts are served. What this process has noted within the hour is not written again."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: dict[tuple[str, str], datetime] = {}

    async def note(self, artifact_key: str, machines: Iterable[str]) -> None:
        """Note that a server of the artifact answers on each of these machines."""
        now = self._clock.now()
        new = [one for one in machines if self._is_due((artifact_key, one), now)]
        if not new:
            return

        async def note(session: AsyncSession) -> None:
            await session.execute(
                delete(ArtifactMachineRow).where(ArtifactMachineRow.at < now - KEPT)
            )
            for machine in sorted(new):
                row = ArtifactMachineRow(artifact_key=artifact_key, machine=machine, at=now)
                await session.merge(row)

        await self._database.write_unit(note)
        self._noted = {pair: at for pair, at in self._noted.items() if now - at < NOTED_AGAIN}
        self._noted.update({(artifact_key, machine): now for machine in new})

    def _is_due(self, pair: tuple[str, str], now: datetime) -> bool:
        at = self._noted.get(pair)
        return at is None or now - at >= NOTED_AGAIN


async def machines_of(session: AsyncSession, artifact_key: str) -> tuple[str, ...]:
    """Read the machines that may hold the artifact, the latest first."""
    found = select(ArtifactMachineRow.machine).where(
        ArtifactMachineRow.artifact_key == artifact_key
    )
    latest = found.order_by(ArtifactMachineRow.at.desc(), ArtifactMachineRow.machine)
    return tuple(await session.scalars(latest.limit(MOST_NAMED)))
