"""Counts over all deployments: how many serve, what they hold, and how busy their model servers are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from guanaco_server.clusters.cluster import Trouble
from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import PUBLISHED
from guanaco_server.deployments.engines.assignment import by_engine, capacity_of
from guanaco_server.deployments.model_servers.model_server import (
    ModelServer,
    ModelServerFault,
    ServerLoad,
)
from guanaco_server.deployments.tables import DeploymentRow, Phase

LOADS_AT_ONCE = 32  # model servers that are asked at the same time


@dataclass(frozen=True)
class EngineCapacity:
    """``users`` are the deployments that are ready on it, ``replicas`` those that it should have. ``capacity`` is one replica's;
    None where nobody measured it."""

    users: tuple[str, ...]
    replicas: int
    capacity: int | None


class DeploymentOverview:
    def __init__(self, database: Database, model_server: ModelServer) -> None:
        self._database = database
        self._model_server = model_server

    async def count_unserved(self) -> dict[str, int]:
        """Count the published deployments for which no model server answers, by what keeps it; `starting` where nothing does."""
        found = Counter(
            row.trouble or "starting"
            for row in await self._rows()
            if row.unserved_since is not None and row.phase in PUBLISHED and not row.is_beside
        )
        return {kind: found[kind] for kind in ("starting", *Trouble)}

    async def count_by_phase(self) -> dict[str, int]:
        found = Counter(row.phase for row in await self._rows())
        return {phase.value: found[phase] for phase in Phase}

    async def gpus_wanted(self) -> dict[str, int]:
        """Return how many GPUs of each type should serve now."""
        found: Counter[str] = Counter()
        rows = [row for row in await self._rows() if row.phase is not Phase.SLEEPING]
        for row in {row.server_key: row for row in rows}.values():
            if row.recipe is not None:
                found[row.recipe.gpu_type] += row.recipe.gpu_count * row.wanted_replicas
        return dict(found)

    async def server_loads(self) -> dict[str, list[ServerLoad]]:
        """Return by submission how busy its servers are. Servers that do not answer are left out.

        Servers that several submissions share are counted once, with the one that began them, if they still serve it.
        """
        serving = (Phase.READY, Phase.DRAINING)
        rows = [row for row in await self._rows() if row.phase in serving]
        asked = [
            (_named_after(users), endpoint)
            for users in by_engine(rows).values()
            for endpoint in dict.fromkeys(at for row in users for at in row.endpoints)
        ]
        places = asyncio.Semaphore(LOADS_AT_ONCE)

        async def load(endpoint: str) -> ServerLoad | None:
            async with places:
                try:
                    return await self._model_server.load(endpoint)
                except ModelServerFault:
                    return None

        loads = await asyncio.gather(*(load(endpoint) for _, endpoint in asked))
        found: defaultdict[str, list[ServerLoad]] = defaultdict(list)
        for (owner, _), server_load in zip(asked, loads, strict=True):
            if server_load is not None:
                found[owner].append(server_load)
        return found

    async def capacities(self) -> dict[str, EngineCapacity]:
        """Return how much each engine carries that is ready for anybody, and for whom."""
        async with self._database.read() as session:
            rows = await queries.ready(session)
        return {
            engine: EngineCapacity(
                tuple(row.submission_id for row in users),
                max(row.applied_replicas for row in users),
                capacity_of(users),
            )
            for engine, users in by_engine(rows).items()
        }

    async def _rows(self) -> list[DeploymentRow]:
        async with self._database.read() as session:
            return list(await queries.all_rows(session))


def _named_after(users: Sequence[DeploymentRow]) -> str:
    owners = sorted(row.owner for row in users)
    return users[0].engine_name if users[0].engine_name in owners else owners[0]
