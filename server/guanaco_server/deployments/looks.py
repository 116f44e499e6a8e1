"""A look at a deployment: what its cluster says, and whether its servers answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from guanaco_server.deployments.clusters.cluster import Cluster, ReplicaPhase, ReplicaState
from guanaco_server.deployments.model_server import ModelServer


class ServerState(StrEnum):
    MISSING = "missing"
    EXITED = "exited"
    STARTING = "starting"
    HEALTHY = "healthy"


@dataclass(frozen=True)
class Sighting:
    """What a look at a deployment saw. ``endpoint`` is of the nearest healthy server, ``spares`` are of the others."""

    state: ServerState
    endpoint: str | None = None
    exit_code: int | None = None
    spares: tuple[str, ...] = ()
    region: str = ""
    problem: str | None = None
    is_settled: bool = True


async def look(cluster: Cluster, model_server: ModelServer, name: str) -> Sighting:
    """Each of its servers is asked; one that answers is enough."""
    seen = await cluster.observe(name)
    if seen is None:
        return Sighting(ServerState.MISSING)
    each = seen.replicas or (seen,)
    checks = await asyncio.gather(*(_is_healthy(model_server, one) for one in each))
    healthy = [one for one, is_healthy in zip(each, checks, strict=True) if is_healthy]
    if seen.phase is ReplicaPhase.EXITED and not healthy:
        return Sighting(ServerState.EXITED, exit_code=seen.exit_code, problem=seen.problem)
    nearest = healthy[0] if healthy else seen
    return Sighting(
        ServerState.HEALTHY if healthy else ServerState.STARTING,
        nearest.endpoint,
        spares=tuple(one.endpoint for one in healthy[1:]),
        region=nearest.region,
        problem=seen.problem or next((one.problem for one in each if one.problem), None),
        is_settled=seen.is_settled,
    )


async def _is_healthy(model_server: ModelServer, replica: ReplicaState) -> bool:
    return replica.phase is ReplicaPhase.RUNNING and await model_server.is_healthy(replica.endpoint)
