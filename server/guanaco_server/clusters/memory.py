"""A cluster in memory, scripted by tests: what jobs say and how they end, and which servers die."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaPhase,
    ReplicaState,
    Trouble,
)


@dataclass(frozen=True)
class JobScript:
    """``works`` is called first, in place of what the job would do."""

    lines: Sequence[str] = ()
    exit_code: int = 0
    works: Callable[[JobSpec], Awaitable[None]] | None = None


@dataclass
class MemoryDeployment:
    spec: DeploymentSpec
    state: ReplicaState
    lines: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.state.phase is ReplicaPhase.RUNNING


class MemoryCluster:
    def __init__(self, job: JobScript | None = None) -> None:
        self.job = job or JobScript()
        self.jobs: list[JobSpec] = []
        self.deployments: dict[str, MemoryDeployment] = {}
        self.starts: list[str] = []
        self.renewed: list[str] = []
        self.expected = 0
        self.has_room = True
        self.pools: dict[str, int] = {}
        self.ready: dict[str, set[str]] = {}
        self.full_queues: set[str] = set()
        self.dies_with: dict[
            str, str
        ] = {}  # an argument, and what a server says of it before it exits
        self._numbers = itertools.count(1)

    def die(self, name: str, exit_code: int = 1, lines: Sequence[str] = ()) -> None:
        """The server of this deployment exits."""
        deployment = self.deployments[name]
        deployment.lines.extend(lines)
        deployment.state = ReplicaState(ReplicaPhase.EXITED, deployment.state.endpoint, exit_code)

    def admit(self, name: str) -> None:
        """Give this deployment its place, for which it waits in its queue."""
        deployment = self.deployments[name]
        endpoint = deployment.state.endpoint
        deployment.state = ReplicaState(ReplicaPhase.RUNNING, endpoint)

    def trouble(self, name: str, problem: str | None) -> None:
        """Set the problem that the cluster reports about a server that goes on running."""
        deployment = self.deployments[name]
        deployment.state = replace(deployment.state, problem=problem)

    async def check(self) -> None:
        """Do nothing: it can always be used."""

    async def start(self) -> None:
        """Do nothing: there is nothing of an earlier process to find."""

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        self.jobs.append(spec)
        script = self.job
        async with asyncio.timeout(spec.timeout_s):
            if script.works is not None:
                await script.works(spec)
            for line in script.lines:
                await on_line(line)
        return JobResult(script.exit_code, tuple(script.lines))

    async def expect_server(self) -> None:
        self.expected += 1

    async def waiting_in_pools(self) -> dict[str, int]:
        return dict(self.pools)

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        return self.has_room

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        current = self.deployments.get(spec.name)
        if current and current.spec == spec and current.is_running:
            return
        if current and replace(current.spec, replicas=spec.replicas) == spec and current.is_running:
            current.spec = spec
            return
        endpoint = f"memory://{spec.name}/{next(self._numbers)}"
        self.starts.append(spec.name)
        state = ReplicaState(ReplicaPhase.RUNNING, endpoint)
        if spec.queue in self.full_queues:
            problem = f"It waits for a place in the queue {spec.queue}."
            state = replace(state, problem=problem, trouble=Trouble.QUEUED, is_ready=False)
        self.deployments[spec.name] = MemoryDeployment(spec, state)
        for argument, line in self.dies_with.items():
            if argument in spec.command:
                self.die(spec.name, lines=[line])

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        self.renewed.append(spec.name)

    @property
    def can_relabel(self) -> bool:
        return True

    @property
    def has_control_routes(self) -> bool:
        return True

    async def relabel(self, spec: DeploymentSpec) -> None:
        self.deployments[spec.name].spec = spec

    async def observe(self, name: str) -> ReplicaState | None:
        deployment = self.deployments.get(name)
        return deployment.state if deployment else None

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        self.ready[name] = set(endpoints)

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        """One address stands for all of them here."""
        return False

    async def list_deployments(self) -> list[str]:
        return sorted(self.deployments)

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        """The offset counts lines here."""
        lines = self.deployments[name].lines if name in self.deployments else []
        return lines[offset:], len(lines)

    async def delete(self, name: str) -> None:
        self.deployments.pop(name, None)

    async def close(self) -> None:
        self.deployments.clear()
