"""Jobs and model servers as processes of this machine.

    <folder>/.instance                      this folder's id, part of every process's marker
    <folder>/<name>/<number>/replica.json   a model server that was started: what, which process, which port
    <folder>/<name>/<number>/server.log     what its current process has said

Model servers outlive a platform that was killed by the lifeline's grace period, so that its successor
finds them again (``start``); jobs do not, for their stage runs again anyway.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaState,
)
from guanaco_server.clusters.local_jobs import follow
from guanaco_server.clusters.local_processes import Leader, kill_marked, spawn
from guanaco_server.clusters.local_records import read_instance
from guanaco_server.clusters.local_replicas import LocalReplicas
from guanaco_server.clusters.local_servers import LocalServer, ServerStarter, read_lines
from guanaco_server.engine.lifeline import GRACE_VARIABLE, PATH_VARIABLE

logger = logging.getLogger(__name__)


class LocalCluster:
    def __init__(
        self,
        folder: Path,
        lifeline: Path,
        lifeline_grace_s: float,
        ports: tuple[int, int],
        drain_s: float = 0.0,
    ) -> None:
        """``drain_s``: how long a replica that is one too many goes on with its replies."""
        self._folder = folder.absolute()
        self._lifeline = lifeline.absolute()
        self._drain_s = drain_s
        self._starter = ServerStarter(ports, self._lifeline_environment(lifeline_grace_s))
        self._instance = ""
        self._deployments: dict[str, LocalReplicas] = {}
        self._jobs: dict[str, asyncio.Task[JobResult]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self) -> None:
        """Processes can always be started; a missing engine is told when it is needed."""

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._instance = read_instance(self._folder)
        adopted: list[Leader] = []
        for folder in (path for path in self._folder.iterdir() if path.is_dir()):
            replicas = LocalReplicas.found(folder, self._drain_s)
            self._deployments[folder.name] = replicas
            leaders = [server.record.leader for server in replicas if server.is_running()]
            adopted += [one for one in leaders if one.carries(self._marker(folder.name))]
        killed = await kill_marked(f"{self._instance}/", spared=adopted)
        logger.info(
            "found %d model servers again, killed %d other processes", len(adopted), len(killed)
        )

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        if earlier := self._jobs.get(spec.name):
            earlier.cancel()
            await asyncio.wait([earlier])
        job = asyncio.create_task(self._run_job(spec, on_line), name=spec.name)
        self._jobs[spec.name] = job
        try:
            return await job
        finally:
            if self._jobs.get(spec.name) is job:
                del self._jobs[spec.name]

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        def start(one: DeploymentSpec, folder: Path) -> LocalServer:
            return self._starter.start(one, self._marker(spec.name), folder, self._ports())

        async with self._locks[spec.name]:
            if spec.name not in self._deployments:
                self._deployments[spec.name] = self._replicas(spec.name)
            await self._deployments[spec.name].apply(spec, start)

    async def observe(self, name: str) -> ReplicaState | None:
        async with self._locks[name]:
            return await self._replicas(name).state()

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        async with self._locks[name]:
            return await self._replicas(name).stop_replica(endpoint)

    async def list_deployments(self) -> list[str]:
        return sorted(name for name, replicas in self._deployments.items() if any(replicas))

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        log = self._replicas(name).log(offset)
        return await asyncio.to_thread(read_lines, *log) if log else ([], 0)

    async def delete(self, name: str) -> None:
        async with self._locks[name]:
            await self._replicas(name).stop()
            self._deployments.pop(name, None)
            shutil.rmtree(self._folder / name, ignore_errors=True)

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(
            *self._jobs.values(),
            *(replicas.stop() for replicas in self._deployments.values()),
            return_exceptions=True,
        )
        self._deployments.clear()

    def _replicas(self, name: str) -> LocalReplicas:
        """None of them, for a name that nobody applied."""
        found = self._deployments.get(name)
        return LocalReplicas(self._folder / name, self._drain_s) if found is None else found

    def _ports(self) -> set[int]:
        return {port for replicas in self._deployments.values() for port in replicas.ports}

    async def _run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        async with asyncio.timeout(spec.timeout_s):
            process = spawn(
                spec.command,
                {**spec.environment, **spec.secrets, **self._lifeline_environment(0)},
                self._marker(spec.name),
                cwd=self._folder,
                stdout=subprocess.PIPE,
                memory_bytes=spec.resources.memory_bytes,
            )
            return await follow(process, Leader.of(process.pid), on_line)

    def _lifeline_environment(self, grace_s: float) -> dict[str, str]:
        return {PATH_VARIABLE: str(self._lifeline), GRACE_VARIABLE: str(grace_s)}

    def _marker(self, name: str) -> str:
        return f"{self._instance}/{name}"
