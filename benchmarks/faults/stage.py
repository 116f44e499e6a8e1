"""Provides what a campaign runs on: the platform's processes, PostgreSQL, an S3 server and a Hub, each with what makes it fail."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.faults.pods import PodCluster, pod_cluster
from benchmarks.faults.proxy import FaultyProxy, in_front_of_port, in_front_of_socket
from guanaco import Client
from guanaco.accounts import Role
from guanaco_server.artifacts.stores.s3_client import S3Config
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures.lying_hub import LyingHub
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import PostgresServer, running_server
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.s3 import rclone
from tests.fixtures.up import SCRIPTED_ENGINE

NATIVE = Path(__file__).parents[1] / "native"
PR_SET_CHILD_SUBREAPER = 36
POSTGRES_MIB = (
    400  # of the file system that fills up; a campaign of 20 minutes writes a quarter of that
)
MAX_CONNECTIONS = 90
GATEWAYS = 2
DEVELOPERS = 3
REPOS = 180  # of all developers; an artifact that is there already is not made again
SUPERVISE_S = 0.2
PG_SOCKET = ".s.PGSQL.5432"
POSTGRES: dict[str, Any] = {
    "synchronous_commit": "on",  # what is acknowledged outlives a kill; fsync is about power cuts
    "max_connections": str(MAX_CONNECTIONS),
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "restart_after_crash": "on",
}
SETTINGS: dict[str, object] = {
    "engine_command": [*SCRIPTED_ENGINE, "--token-delay-ms", "20"],
    "engine_nursery": False,  # it imports vLLM, which nothing here is
    "stress_duration_s": 0.5,
    "stress_rate": 4,
    "stress_requests": 4,
    "failover_s": 20,
    "first_token_timeout_s": 20,
    "reply_timeout_s": 30,
    "worker_silence_s": 6,
    "lifeline_grace_s": 30,
    "restart_limit": 1_000_000,
    "log_format": "text",
    "quota_per_hour": 0,
    "quota_live": 0,
    "quota_in_progress": 0,
}


class SteppedClock:
    """The wall clock of every process of the platform, which a library in them reads from a file (clock_step.c)."""

    def __init__(self, folder: Path) -> None:
        library, file = folder / "clock_step.so", folder / "clock_step"
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", "-o", library, NATIVE / "clock_step.c", "-ldl"],
            check=True,
        )
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._ahead = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_STEP_FILE": str(file)}

    def step_to(self, ahead_s: float) -> None:
        self._ahead[:] = struct.pack("<q", int(ahead_s * 1e9))


@dataclass
class SupervisedProcess:
    """A role's process, started again when it ends, as systemd or a cluster does. ``is_held`` leaves it dead."""

    roles: Roles
    role: str
    name: str
    settings: dict[str, Any]
    process: RoleProcess
    restarts: int = 0

    def tend(self) -> None:
        if self.process.process.poll() is not None:
            self.restarts += 1
            self.process = self.roles.launch(self.role, self.name, **self.settings)


@dataclass
class Stage:
    folder: Path
    clock: SteppedClock
    postgres: PostgresServer
    database_proxy: FaultyProxy
    store_proxy: FaultyProxy
    hub: LyingHub
    roles: Roles
    store: S3Config
    ballast: Path | None
    repos: list[str]
    pods: PodCluster | None = None
    app_key: str = ""
    developer_key: str = ""
    api: SupervisedProcess = field(init=False)
    worker: SupervisedProcess = field(init=False)
    is_stopping: bool = False
    is_calm: bool = False  # nothing is to fail now, and nobody waits for something to hit

    @property
    def base_url(self) -> str:
        return self.api.process.base_url

    def start(self) -> None:
        self.roles.migrate()
        self.api = self._supervised("api", "api-0", gateways=GATEWAYS)
        self.worker = self._supervised("worker", "worker-0")
        developer = self.roles.client(self.api.process)
        self.developer_key = developer.transport.address.key or ""
        with Client(self.base_url, self.roles.admin_key) as admin:
            self.app_key = admin.create_key("app", Role.BACKEND).key

    def _supervised(self, role: str, name: str, **own: object) -> SupervisedProcess:
        settings: dict[str, Any] = {"port": free_port(), "metrics_port": free_port(), **own}
        process = self.roles.start(role, name, **settings)
        return SupervisedProcess(self.roles, role, name, settings, process)

    async def supervise(self) -> None:
        while not self.is_stopping:
            for one in (self.api, self.worker):
                await asyncio.to_thread(one.tend)
            await asyncio.sleep(SUPERVISE_S)

    async def until_ready(self) -> None:
        for one in (self.api, self.worker):
            while not await asyncio.to_thread(_is_ready, one.process):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(0.2)

    def processes(self, *parts: str) -> list[psutil.Process]:
        """The campaign's processes whose command has one of these parts."""
        return [
            one
            for one in descendants()
            if any(part in word for word in _command(one) for part in parts)
        ]

    def gateways(self) -> list[psutil.Process]:
        return self.processes("guanaco_server.gateway_process")

    def engines(self) -> list[psutil.Process]:
        return self.processes("scripted_engine.py")

    def serializers(self) -> list[psutil.Process]:
        return self.processes("guanaco_server.serializer")

    def stop(self) -> None:
        self.is_stopping = True
        self.roles.__exit__(None, None, None)
        if self.pods is not None:
            self.pods.stop_nodes()


def descendants() -> list[psutil.Process]:
    """Every live process that the campaign has started, also those whose parent has died."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def adopt_orphans() -> None:
    """Become the parent of whatever a killed process of the campaign leaves behind (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_ready(process: RoleProcess) -> bool:
    return process.process.poll() is None and process.is_ready()


@contextlib.asynccontextmanager
async def built(engine_python: Path, *, has_pods: bool) -> AsyncIterator[Stage]:
    """Everything but the platform's own processes, which ``start`` starts."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guanaco-faults-")))
        folder.chmod(0o755)  # noqa: ASYNC240 - PostgreSQL runs as another user
        clock = SteppedClock(folder)
        disk = stack.enter_context(_small_disk(folder / "disk"))
        postgres = stack.enter_context(running_server(parent=disk, **POSTGRES))
        proxied = folder / "pg"
        proxied.mkdir()
        database_proxy = await stack.enter_async_context(
            in_front_of_socket(str(postgres.folder / PG_SOCKET), str(proxied / PG_SOCKET))
        )
        url = postgres.url(postgres.create()).replace(str(postgres.folder), str(proxied))
        s3 = stack.enter_context(rclone())
        store_port = free_port()
        inner = urlsplit(s3.endpoint).port
        assert inner is not None
        store_proxy = await stack.enter_async_context(in_front_of_port(inner, store_port))
        hub = stack.enter_context(LyingHub(folder / "hub", {}, "http://127.0.0.1:9/"))
        repos = _make_repos(hub.root)
        pods = None
        if has_pods:
            pods = await stack.enter_async_context(pod_cluster(folder, engine_python))
        config = s3.bucket()
        settings: dict[str, object] = {
            **SETTINGS,
            "database_url": url,
            "hub_endpoint": hub.url,
            "engine_python": str(engine_python),
            "artifacts_url": f"s3://{config.bucket}/models",
            "s3_endpoint": f"http://127.0.0.1:{store_port}",
            "s3_addressing": "path",
            "s3_access_key_id": config.access_key_id,
            "s3_secret_access_key": config.secret_access_key,
            "s3_region": config.region,
            **(pods.settings if pods else {}),
        }
        os.environ |= clock.environment  # read by what is started from here on
        stack.callback(lambda: [os.environ.pop(name) for name in clock.environment])
        roles = Roles(folder, **settings)
        stage = Stage(folder, clock, postgres, database_proxy, store_proxy, hub, roles, config, disk and disk / "ballast", repos, pods)  # fmt: skip
        try:
            yield stage
        finally:
            # In a thread: what the platform's end still writes goes through the proxies of this one.
            await asyncio.to_thread(stage.stop)


def _make_repos(root: Path) -> list[str]:
    """Make repos that differ in two of their weights, which takes less time than to make each from nothing."""
    repos = [f"acme/tiny{number}" for number in range(REPOS)]
    make_tiny_repo(root / repos[0])
    for number, repo in enumerate(repos[1:], 1):
        shutil.copytree(root / repos[0], root / repo)
        with (root / repo / "model.safetensors").open("r+b") as weights:
            weights.seek(-4, os.SEEK_END)
            weights.write(struct.pack("<HH", 0x3C00 | number & 0x7F, 0x3C00 | number >> 7))
    return repos


@contextlib.contextmanager
def _small_disk(at: Path) -> Iterator[Path | None]:
    """A file system that can be filled; None where this process may not mount one."""
    at.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={POSTGRES_MIB}m,mode=755", "tmpfs", at],
        capture_output=True,
    )
    if done.returncode:
        yield None
        return
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)
