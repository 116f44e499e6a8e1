"""The health of a deployment: what its cluster says, whether its servers answer, and which of them hang.

A server hangs when it runs but does not answer for so long that it should be stopped:

    ready before     ``HANGS_AFTER`` silent health checks in a row
    still starting   ``ready_timeout``

A replica beside others that answer is judged alone. Where none answers, the deployment is judged as a whole. A server that nobody uses is judged like one
that was ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from guanaco_server.clusters.cluster import Cluster, ReplicaPhase, ReplicaState, Trouble
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock


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


@dataclass
class _Unanswered:
    since: datetime
    was_ready: bool
    looks: int = 0


class HangDetector:
    def __init__(self, clock: Clock, ready_timeout_s: float) -> None:
        self._clock = clock
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._failed_looks: dict[str, int] = {}
        self._failed_idle_looks: dict[str, int] = {}  # by engine
        self._excused_until: dict[str, datetime] = {}
        self._silences: dict[str, dict[str, _Unanswered]] = {}

    def hanging(self, row: DeploymentRow, seen: DeploymentHealth) -> list[str]:
        """Return the endpoints of the replicas to stop, after a check at which others answered."""
        self._failed_looks.pop(row.submission_id, None)
        before, now = self._silences.get(row.submission_id, {}), self._clock.now()
        silences = {
            endpoint: before.get(endpoint) or _Unanswered(now, endpoint in row.endpoints)
            for endpoint in seen.silent
        }
        for silence in silences.values():
            silence.looks += 1
        hanging = [endpoint for endpoint, silence in silences.items() if self._is_over(silence)]
        for endpoint in hanging:  # from now on it is one that starts
            silences[endpoint] = _Unanswered(now, was_ready=False)
        self._silences[row.submission_id] = silences
        return hanging

    def restart_ready_timeout(self, row: DeploymentRow) -> None:
        """Note that the cluster has not let it begin until now: the time to get ready begins afterwards."""
        self._excused_until[row.submission_id] = self._clock.now()
        self._failed_looks.pop(row.submission_id, None)

    def hangs(self, row: DeploymentRow) -> bool:
        """Return whether to stop the whole deployment, after a check at which no server answered."""
        if row.phase is Phase.RESTARTING:
            since = max(row.updated_at, self._excused_until.get(row.submission_id, row.updated_at))
            return self._clock.now() - since > self._ready_timeout
        failed = self._failed_looks.get(row.submission_id, 0) + 1
        self._failed_looks[row.submission_id] = 0 if failed >= HANGS_AFTER else failed
        return failed >= HANGS_AFTER

    def idle_hangs(self, engine: str, seen: DeploymentHealth) -> bool:
        """Return whether to stop a server that nobody uses, after a check of it."""
        is_silent = seen.state is ServerState.STARTING
        failed = self._failed_idle_looks.get(engine, 0) + 1 if is_silent else 0
        self._failed_idle_looks[engine] = failed
        return failed >= HANGS_AFTER

    def forget_idle_but(self, engines: set[str]) -> None:
        """Forget the servers of engines that are gone."""
        for engine in self._failed_idle_looks.keys() - engines:
            del self._failed_idle_looks[engine]

    def forget_all_but(self, submission_ids: set[str]) -> None:
        for memory in (self._failed_looks, self._silences, self._excused_until):
            for submission_id in memory.keys() - submission_ids:
                del memory[submission_id]

    def _is_over(self, silence: _Unanswered) -> bool:
        if silence.was_ready:
            return silence.looks >= HANGS_AFTER
        return self._clock.now() - silence.since > self._ready_timeout
