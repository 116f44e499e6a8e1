"""Jobs and model servers as processes of this machine.

    <folder>/.instance                 this folder's id, part of every process's marker
    <folder>/<name>/deployment.json    the server that was started: what, which process, which port
    <folder>/<name>/server.log         what its current process has said

Model servers outlive a platform that was killed by the lifeline's grace period, so that its successor
finds them again (``start``); jobs do not, for their stage runs again anyway.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import socket
import subprocess
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from guanaco_server.deployments.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaPhase,
    ReplicaState,
)
from guanaco_server.deployments.clusters.local_jobs import follow
from guanaco_server.deployments.clusters.local_processes import (
    Leader,
    kill_marked,
    spawn,
    stop_group,
)
from guanaco_server.deployments.clusters.local_records import (
    RECORD_NAME,
    DeploymentRecord,
    read_instance,
)
from guanaco_server.engine.lifeline import GRACE_VARIABLE, PATH_VARIABLE

HOST = "127.0.0.1"
LOG_NAME = "server.log"
LOG_BYTES = 1_048_576  # given at one call; the caller asks again

logger = logging.getLogger(__name__)


@dataclass
class _Server:
    """``child`` is None for a process that an earlier platform started: its exit status is not ours to know."""

    record: DeploymentRecord
    child: subprocess.Popen[bytes] | None

    def is_running(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return self.record.leader.is_running()

    @property
    def exit_code(self) -> int | None:
        return None if self.child is None else self.child.returncode


class LocalCluster:
    def __init__(
        self, folder: Path, lifeline: Path, lifeline_grace_s: float, ports: tuple[int, int]
    ) -> None:
        self._folder = folder.absolute()
        self._lifeline = lifeline.absolute()
        self._lifeline_grace_s = lifeline_grace_s
        self._ports = ports
        self._instance = ""
        self._servers: dict[str, _Server] = {}
        self._jobs: dict[str, asyncio.Task[JobResult]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self) -> None:
        """Processes can always be started; a missing engine is told when it is needed."""

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._instance = read_instance(self._folder)
        for folder in (path for path in self._folder.iterdir() if path.is_dir()):
            if record := DeploymentRecord.read(folder):
                self._servers[folder.name] = _Server(record, child=None)
        adopted = [
            server.record.leader
            for name, server in self._servers.items()
            if server.is_running() and server.record.leader.carries(self._marker(name))
        ]
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
        """One machine has one replica of each: more would only compete for it."""
        spec = replace(spec, replicas=1)
        async with self._locks[spec.name]:
            server = self._servers.get(spec.name)
            if server and server.record.spec == spec and server.is_running():
                return
            if server:
                await self._stop(server)
            self._servers[spec.name] = self._start_server(spec)

    async def observe(self, name: str) -> ReplicaState | None:
        server = self._servers.get(name)
        if server is None:
            return None
        if server.is_running():
            return ReplicaState(ReplicaPhase.RUNNING, server.record.endpoint)
        if server.record.leader.group():  # its children must not outlive it
            async with self._locks[name]:
                await self._stop(server)
        return ReplicaState(ReplicaPhase.EXITED, server.record.endpoint, server.exit_code)

    async def list_deployments(self) -> list[str]:
        return sorted(self._servers)

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        path = self._folder / name / LOG_NAME
        return await asyncio.to_thread(_read_lines, path, offset)

    async def delete(self, name: str) -> None:
        async with self._locks[name]:
            if server := self._servers.pop(name, None):
                await self._stop(server)
            shutil.rmtree(self._folder / name, ignore_errors=True)

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(
            *self._jobs.values(),
            *(self._stop(server) for server in self._servers.values()),
            return_exceptions=True,
        )
        for name in self._servers:
            (self._folder / name / RECORD_NAME).unlink(missing_ok=True)
        self._servers.clear()

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

    def _start_server(self, spec: DeploymentSpec) -> _Server:
        folder = self._folder / spec.name
        folder.mkdir(exist_ok=True)
        (folder / LOG_NAME).unlink(missing_ok=True)
        port = self._choose_port()
        with (folder / LOG_NAME).open("wb") as log:
            child = spawn(
                [
                    part.replace("{port}", str(port)).replace("{host}", HOST)
                    for part in spec.command
                ],
                {
                    **spec.environment,
                    **spec.secrets,
                    **self._lifeline_environment(self._lifeline_grace_s),
                },
                self._marker(spec.name),
                cwd=folder,
                stdout=log.fileno(),
            )
        record = DeploymentRecord(replace(spec, secrets={}), Leader.of(child.pid), port)
        record.write(folder)
        return _Server(record, child)

    async def _stop(self, server: _Server) -> None:
        await stop_group(server.record.leader, server.child)

    def _choose_port(self) -> int:
        """A free one that no other deployment was given, whether or not it listens yet."""
        first, last = self._ports
        given = {server.record.port for server in self._servers.values()}
        for port in random.sample(range(first, last + 1), last + 1 - first):
            if port not in given and _is_free(port):
                return port
        raise OSError(f"no free port between {first} and {last}")

    def _lifeline_environment(self, grace_s: float) -> dict[str, str]:
        return {PATH_VARIABLE: str(self._lifeline), GRACE_VARIABLE: str(grace_s)}

    def _marker(self, name: str) -> str:
        return f"{self._instance}/{name}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _read_lines(path: Path, offset: int) -> tuple[list[str], int]:
    """A log shorter than the offset is a new process's: read from its beginning."""
    try:
        with path.open("rb") as log:
            if log.seek(0, 2) < offset:
                offset = 0
            log.seek(offset)
            data = log.read(LOG_BYTES)
    except FileNotFoundError:
        return [], 0
    whole, newline, _ = data.rpartition(b"\n")
    if not newline:
        return (
            ([data.decode(errors="replace")], offset + len(data))
            if len(data) == LOG_BYTES
            else ([], offset)
        )
    return whole.decode(errors="replace").split("\n"), offset + len(whole) + 1
