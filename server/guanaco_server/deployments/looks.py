"""A look at a deployment: what its cluster says, and whether its servers answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from guanaco_server.clusters.cluster import Cluster, ReplicaPhase, ReplicaState
from guanaco_server.deployments.model_server import ModelServer


class ServerState(StrEnum):
    MISSING = "missing"
    EXITED = "exited"
    STARTING = "starting"
    HEALTHY = "healthy"


@dataclass(frozen=True)
class Sighting:
    """What a look at a deployment saw. ``endpoints`` are those of its healthy servers, nearest first; ``silent`` ones run, but do not answer."""

    state: ServerState
    endpoints: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    exit_code: int | None = None
    region: str = ""
    problem: str | None = None
    is_settled: bool = True


async def look(cluster: Cluster, model_server: ModelServer, name: str) -> Sighting:
    """Each of its servers is asked; one that answers is enough."""
    seen = await cluster.observe(name)
    if seen is None:
        return Sighting(ServerState.MISSING)
    each = seen.replicas or (seen,)
    running = [one for one in each if one.phase is ReplicaPhase.RUNNING]
    checks = await asyncio.gather(*(_answers(model_server, one) for one in running))
    healthy = [one for one, is_healthy in zip(running, checks, strict=True) if is_healthy]
    if seen.phase is ReplicaPhase.EXITED and not healthy:
        return Sighting(ServerState.EXITED, exit_code=seen.exit_code, problem=seen.problem)
    return Sighting(
        ServerState.HEALTHY if healthy else ServerState.STARTING,
        tuple(one.endpoint for one in healthy),
        tuple(one.endpoint for one in running if one.endpoint and one not in healthy),
        region=(healthy[0] if healthy else seen).region,
        problem=seen.problem or next((one.problem for one in each if one.problem), None),
        is_settled=seen.is_settled,
    )


async def _answers(model_server: ModelServer, one: ReplicaState) -> bool:
    return one.is_ready and await model_server.is_healthy(one.endpoint)
