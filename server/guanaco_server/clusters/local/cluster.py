"""Jobs and model servers as processes of this machine.

    <folder>/.instance                      this folder's id, part of every process's marker
    <folder>/<name>/<number>/replica.json   a model server that was started
    <folder>/<name>/<number>/server.log     the output of its current process
    <folder>/.nursery/                      the log and the files of the process that forks model servers

Model servers outlive a platform that was killed by the lifeline's grace period, so that its successor can adopt
them (``start``). Jobs do not, because their stage runs again anyway.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaState,
)
from guanaco_server.clusters.local.fork_server import ForkServer, has_memory_left
from guanaco_server.clusters.local.processes import (
    POLL_S,
    GroupLeader,
    kill_marked,
    spawn,
    stop_group,
)
from guanaco_server.clusters.local.replicas import LocalReplicas
from guanaco_server.clusters.local.servers import (
    WEIGHT_COPIES,
    LocalServer,
    ServerStarter,
    read_instance,
    read_lines,
)
from guanaco_server.confinement import priority
from guanaco_server.engine.lifeline import GRACE_VARIABLE, PATH_VARIABLE
from guanaco_server.runtime import threads

FORK_SERVER = "nursery"  # no deployment's name: those begin with m-
RAISE_TRIES = 5  # the next health check tries again
RAISE_PAUSE_S = 0.12  # Linux takes one such change in a tenth of a second
SERVER_MEMORY_BYTES = 6 * 1024**3  # the tiny model with 1 GiB of KV cache takes 2

logger = logging.getLogger(__name__)


class LocalCluster:
    def __init__(
        self,
        folder: Path,
        lifeline: Path,
        lifeline_grace_s: float,
        ports: tuple[int, int],
        drain_s: float,
        server_memory_bytes: int = SERVER_MEMORY_BYTES,
        engine_python: Path = Path(sys.executable),
        has_fork_server: bool = False,
    ) -> None:
        """``drain_s`` is how long a replica that is no longer wanted may finish its replies.

        ``server_memory_bytes`` is what each process of a model server may take beside its weights. ``has_fork_server``: the
        servers of ``engine_python`` are forked from a process that has imported vLLM.
        """
        self._folder = folder.absolute()
        self._lifeline = lifeline.absolute()
        self._drain_s = drain_s
        lifeline_environment = self._lifeline_environment(lifeline_grace_s)
        self._fork_server = ForkServer(
            self._folder, engine_python, lifeline_environment, has_fork_server
        )
        self._starter = ServerStarter(
            ports, lifeline_environment, server_memory_bytes, self._fork_server
        )
        self._instance = ""
        self._deployments: dict[str, LocalReplicas] = {}
        self._jobs: dict[str, asyncio.Task[JobResult]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self) -> None:
        """Check nothing: processes can always be started, and a missing engine is reported when it is needed."""

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._instance = read_instance(self._folder)
        adopted: list[GroupLeader] = []
        for folder in (path for path in self._folder.iterdir() if _is_deployment(path)):
            replicas = LocalReplicas.found(folder, self._drain_s)
            self._deployments[folder.name] = replicas
            leaders = [server.record.leader for server in replicas if server.is_running()]
            adopted += [one for one in leaders if one.carries(self._marker(folder.name))]
        killed = await kill_marked(f"{self._instance}/", spared=adopted)
        self._fork_server.clear()
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

    async def expect_server(self) -> None:
        self._fork_server.expect(self._marker(FORK_SERVER))

    async def waiting_in_pools(self) -> dict[str, int]:
        """Return nothing: one process with vLLM imported is forked for every server."""
        return {}

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        """Tell whether memory is left for all that it may take. Which GPUs of this machine are free is not known."""
        takes_gpus = spec.resources.gpu_count or spec.resources.nodes > 1
        takes = self._starter.memory_bytes + WEIGHT_COPIES * spec.artifact_bytes
        return not takes_gpus and has_memory_left(takes)

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        if spec.resources.nodes > 1:
            raise ClusterRefused(
                f"The local cluster is one machine, so a model cannot be served over {spec.resources.nodes}.",
                hint="Set a recipe with --nodes 1, or run the platform on Kubernetes.",
            )

        async def start(one: DeploymentSpec, folder: Path) -> LocalServer:
            await self.expect_server()
            return await self._starter.start(one, self._marker(spec.name), folder, self._ports())

        async with self._locks[spec.name]:
            if spec.name not in self._deployments:
                self._deployments[spec.name] = self._replicas(spec.name)
            await self._deployments[spec.name].apply(spec, start)

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        """Do nothing: a server that starts here is started by the platform, with fresh ones."""

    @property
    def can_relabel(self) -> bool:
        return True

    @property
    def has_control_routes(self) -> bool:
        return True

    async def relabel(self, spec: DeploymentSpec) -> None:
        async with self._locks[spec.name]:
            self._replicas(spec.name).relabel(spec)

    async def observe(self, name: str) -> ReplicaState | None:
        async with self._locks[name]:
            return await self._replicas(name).state()

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        """Give them the platform's priority before anything is measured on them."""
        for _ in range(RAISE_TRIES):
            if self._replicas(name).note_ready(endpoints):
                return
            await asyncio.sleep(RAISE_PAUSE_S)

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        async with self._locks[name]:
            return await self._replicas(name).stop_replica(endpoint)

    async def list_deployments(self) -> list[str]:
        return sorted(name for name, replicas in self._deployments.items() if any(replicas))

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        log = self._replicas(name).log(offset)
        return await threads.FILES.run(read_lines, *log) if log else ([], 0)

    async def delete(self, name: str) -> None:
        async with self._locks[name]:
            await self._replicas(name).stop()
            self._deployments.pop(name, None)
            await threads.FILES.run(shutil.rmtree, self._folder / name, ignore_errors=True)

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(
            *self._jobs.values(),
            *(replicas.stop() for replicas in self._deployments.values()),
            self._fork_server.stop(),
            return_exceptions=True,
        )
        self._deployments.clear()

    def _replicas(self, name: str) -> LocalReplicas:
        """Return the deployment's replicas, none for an unknown name."""
        found = self._deployments.get(name)
        return LocalReplicas(self._folder / name, self._drain_s) if found is None else found

    def _ports(self) -> set[int]:
        return {port for replicas in self._deployments.values() for port in replicas.ports}

    async def _run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        own = tempfile.TemporaryDirectory(prefix="guanaco-", ignore_cleanup_errors=True)
        try:
            return await self._run_job_in(spec, on_line, {"HOME": own.name, "TMPDIR": own.name})
        finally:  # in a thread: a stranger's files decide how long it takes
            await threads.FILES.run(own.cleanup)

    async def _run_job_in(
        self, spec: JobSpec, on_line: LineSink, folders: dict[str, str]
    ) -> JobResult:
        async with asyncio.timeout(spec.timeout_s):
            process = spawn(
                spec.command,
                {**spec.environment, **spec.secrets, **self._lifeline_environment(0), **folders},
                self._marker(spec.name),
                cwd=self._folder,
                stdout=subprocess.PIPE,
                memory_bytes=spec.resources.memory_bytes,
            )
            priority.lower(process.pid)
            return await follow(process, GroupLeader.of(process.pid), on_line)

    def _lifeline_environment(self, grace_s: float) -> dict[str, str]:
        return {PATH_VARIABLE: str(self._lifeline), GRACE_VARIABLE: str(grace_s)}

    def _marker(self, name: str) -> str:
        return f"{self._instance}/{name}"


def _is_deployment(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


KEPT_LINES = 20
LINE_BYTES = 65_536  # the rest of a longer line is dropped


async def follow(
    process: subprocess.Popen[bytes], leader: GroupLeader, on_line: LineSink
) -> JobResult:
    """Pass on the output until the process has ended. In any case its whole process group is stopped."""
    last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    async def pass_on(reader: asyncio.StreamReader) -> None:
        async for line in _lines(reader):
            last_lines.append(line)
            await on_line(line)

    try:
        async with _output(process) as reader:
            passing_on = asyncio.create_task(pass_on(reader))
            try:
                await _wait(process, passing_on)
                await stop_group(leader, process)  # whoever else still holds the pipe
                await passing_on
            finally:
                passing_on.cancel()
    finally:
        await asyncio.shield(asyncio.create_task(stop_group(leader, process)))
    return JobResult(process.returncode, tuple(last_lines))


async def _wait(process: subprocess.Popen[bytes], passing_on: asyncio.Task[None]) -> None:
    """Wait until the process has ended. An error of the reader of its output is raised at once."""
    while process.poll() is None:
        await asyncio.sleep(POLL_S)
        if passing_on.done():
            passing_on.result()


@asynccontextmanager
async def _output(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """Read the output through a pipe, not a file, so that a job whose disk is full can still say so."""
    assert process.stdout is not None, "started with a pipe"
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        yield reader
    finally:
        transport.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while data := await reader.read(LINE_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line[:LINE_BYTES].decode(errors="replace")
        rest = rest[:LINE_BYTES]
    if rest:
        yield rest.decode(errors="replace")
