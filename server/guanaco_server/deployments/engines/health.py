"""The health of a deployment: what its cluster says, and whether its servers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from guanaco_server.clusters.cluster import Cluster, ReplicaPhase, ReplicaState, Trouble
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault


class ServerState(StrEnum):
    MISSING = "missing"
    EXITED = "exited"
    STARTING = "starting"
    HEALTHY = "healthy"


@dataclass(frozen=True)
class DeploymentHealth:
    """The result of one health check. ``endpoints`` are those of the healthy servers, nearest first; ``silent`` ones run but do not answer.

    ``machines`` are those of the healthy servers, where the cluster has several.
    """

    state: ServerState
    endpoints: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    exit_code: int | None = None
    trouble: Trouble | None = None
    region: str = ""
    problem: str | None = None
    is_settled: bool = True
    machines: tuple[str, ...] = ()


async def look(cluster: Cluster, model_server: ModelServer, name: str) -> DeploymentHealth:
    """Ask each of its servers; one that answers makes the deployment healthy."""
    seen = await cluster.observe(name)
    if seen is None:
        return DeploymentHealth(ServerState.MISSING, trouble=Trouble.OBJECT_MISSING)
    each = seen.replicas or (seen,)
    running = [one for one in each if one.phase is ReplicaPhase.RUNNING]
    checks = await asyncio.gather(*(_answers(model_server, one) for one in running))
    healthy = [one for one, is_healthy in zip(running, checks, strict=True) if is_healthy]
    if healthy:
        await cluster.note_ready(name, [one.endpoint for one in healthy])
    if seen.phase is ReplicaPhase.EXITED and not healthy:
        return DeploymentHealth(
            ServerState.EXITED,
            exit_code=seen.exit_code,
            trouble=seen.trouble or Trouble.CRASHED,
            problem=seen.problem,
        )
    return DeploymentHealth(
        ServerState.HEALTHY if healthy else ServerState.STARTING,
        tuple(one.endpoint for one in healthy),
        tuple(one.endpoint for one in running if one.endpoint and one not in healthy),
        trouble=None if healthy else seen.trouble,
        region=(healthy[0] if healthy else seen).region,
        problem=seen.problem or next((one.problem for one in each if one.problem), None),
        is_settled=seen.is_settled,
        machines=tuple(dict.fromkeys(one.machine for one in healthy if one.machine)),
    )


async def _answers(model_server: ModelServer, one: ReplicaState) -> bool:
    return one.is_ready and await model_server.is_healthy(one.endpoint)


HANGS_AFTER = 5  # failed health checks in a row, each with a timeout of its own
LOOK_S = 0.5


async def await_order(
    order: Awaitable[None], check: Callable[[], Awaitable[DeploymentHealth]]
) -> None:
    """Wait for a server to carry out an order, which may take minutes. ModelServerFault as soon as the server has ended or hangs.

    The order's connection does not tell: of a node that was lost, or a process whose port another one holds open, nothing comes.
    """
    task = asyncio.ensure_future(order)
    failed_looks = 0
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            seen = await check()
            failed_looks = 0 if seen.state is ServerState.HEALTHY else failed_looks + 1
            has_ended = seen.state in (ServerState.EXITED, ServerState.MISSING)
            if not task.done() and (has_ended or failed_looks >= HANGS_AFTER):
                raise ModelServerFault("The model server ended before it had answered an order.")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
