"""One model server process: starting it, writing it down, finding it again, reading its log.

<folder>/replica.json    what was started: the spec, the process, the port
<folder>/server.log      the output of the current process
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    ReplicaPhase,
    ReplicaState,
    Resources,
)
from guanaco_server.clusters.local.fork_server import ForkServer
from guanaco_server.clusters.local.processes import GroupLeader, spawn, stop_group
from guanaco_server.confinement import priority
from guanaco_server.confinement.profiles import OWN_FOLDERS_VARIABLE
from guanaco_server.engine.memory_limit import MEMORY_VARIABLE
from guanaco_server.runtime import threads

HOST = "127.0.0.1"
LOG_NAME = "server.log"
HOME_NAME = "home"
TEMPORARY_NAME = "tmp"
WEIGHT_COPIES = 2  # while they are loaded and rearranged
REAP_S = 1.0
LOG_BYTES = 1_048_576  # given at one call; the caller asks again


class ServerProcess(Protocol):
    """The process of a model server. ``exit_code`` is None while it runs, and where it is not ours to know."""

    @property
    def leader(self) -> GroupLeader: ...
    @property
    def exit_code(self) -> int | None: ...
    def is_running(self) -> bool: ...

    def reap(self) -> None:
        """Leave nothing of one that has ended."""


class ChildServer:
    """One that was started by its command."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.leader = GroupLeader.of(process.pid)
        self._process = process

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def reap(self) -> None:
        """Wait for the end. A killed process is a zombie while its last threads still die: it can be waited for some milliseconds later."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)


@dataclass(frozen=True)
class FoundServer:
    """One that an earlier platform started."""

    leader: GroupLeader
    exit_code: int | None = None

    def is_running(self) -> bool:
        return self.leader.is_running()

    def reap(self) -> None:
        """Do nothing: it is no child of ours."""


@dataclass
class LocalServer:
    """``has_priority`` once it has been raised to that of what serves."""

    folder: Path
    record: ReplicaRecord
    process: ServerProcess
    has_priority: bool = False

    @staticmethod
    def found(folder: Path) -> LocalServer | None:
        """Return the server that an earlier platform wrote down."""
        record = ReplicaRecord.read(folder)
        return LocalServer(folder, record, FoundServer(record.leader)) if record else None

    def is_running(self) -> bool:
        return self.process.is_running()

    def state(self) -> ReplicaState:
        if self.is_running():
            return ReplicaState(ReplicaPhase.RUNNING, self.record.endpoint)
        return ReplicaState(ReplicaPhase.EXITED, self.record.endpoint, self.process.exit_code)

    def raise_priority(self) -> bool:
        """Give it the platform's priority. False where that has to be tried again."""
        if not self.has_priority and self.is_running():
            self.has_priority = priority.restore_priority(self.record.leader.pid)
        return self.has_priority or not self.is_running()

    def has_orphans(self) -> bool:
        """True if it has exited and left children behind."""
        return not self.is_running() and bool(self.record.leader.group())

    async def stop(self) -> None:
        """Stop the process and everything it started; remove its temporary files."""
        await stop_group(self.record.leader)
        self.process.reap()
        await threads.FILES.run(remove_private_folder, self.folder)

    def forget(self) -> None:
        """Remove the record, so that a later platform does not find this server."""
        (self.folder / RECORD_NAME).unlink(missing_ok=True)


@dataclass(frozen=True)
class ServerStarter:
    """``ports`` are the first and the last that may be used; ``environment`` comes in addition to a spec's own.

    ``memory_bytes`` is what a process of a server may take beside its weights.
    """

    ports: tuple[int, int]
    environment: dict[str, str]
    memory_bytes: int
    fork_server: ForkServer

    starting: set[int] = field(
        default_factory=set
    )  # ports of servers that are not written down yet

    async def start(
        self, spec: DeploymentSpec, marker: str, folder: Path, taken: Collection[int]
    ) -> LocalServer:
        """Start one replica on a free port that is not ``taken``."""
        _make_ready(folder)
        folders = await threads.FILES.run(own_folders, folder)
        port = self._choose_port({*taken, *self.starting})
        command = tuple(
            part.replace("{port}", str(port)).replace("{host}", HOST) for part in spec.command
        )
        environment = {
            **spec.environment,
            **spec.secrets,
            **self.environment,
            MEMORY_VARIABLE: str(self.memory_bytes + WEIGHT_COPIES * spec.artifact_bytes),
            **folders,
        }
        self.starting.add(port)
        try:
            process = await self._start(command, environment, marker, folder / LOG_NAME)
        except BaseException:
            remove_private_folder(folder)
            raise
        finally:
            self.starting.discard(port)
        priority.lower_until_raised(process.leader.pid)
        record = ReplicaRecord(replace(spec, secrets={}), process.leader, port)
        record.write(folder)
        return LocalServer(folder, record, process)

    async def _start(
        self, command: tuple[str, ...], environment: dict[str, str], marker: str, log: Path
    ) -> ServerProcess:
        if forked := await self.fork_server.claim(command, environment, marker, log):
            return forked
        with log.open("wb") as output:
            return ChildServer(
                spawn(command, environment, marker, cwd=log.parent, stdout=output.fileno())
            )

    def _choose_port(self, taken: Collection[int]) -> int:
        first, last = self.ports
        for port in random.sample(range(first, last + 1), last + 1 - first):
            if port not in taken and _is_free(port):
                return port
        raise OSError(f"no free port between {first} and {last}")


def _make_ready(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOG_NAME).unlink(missing_ok=True)


def own_folders(folder: Path) -> dict[str, str]:
    """Return the variables of a home and a temporary folder that no other process shares.

    The second is a link to a folder with a short path: a socket's path has at most 107 characters.
    """
    remove_private_folder(folder)
    home, temporary = folder / HOME_NAME, tempfile.mkdtemp(prefix="guanaco-")
    home.mkdir(exist_ok=True)
    (folder / TEMPORARY_NAME).symlink_to(temporary)
    return {
        "HOME": str(home),
        "TMPDIR": temporary,
        OWN_FOLDERS_VARIABLE: os.pathsep.join((str(home.absolute()), temporary)),
    }


def remove_private_folder(folder: Path) -> None:
    link = folder / TEMPORARY_NAME
    with suppress(OSError):
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()


def read_lines(path: Path, offset: int) -> tuple[list[str], int]:
    """Read the whole lines since the offset. A log shorter than the offset is a new process's and is read from its start."""
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


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


RECORD_NAME = "replica.json"
INSTANCE_NAME = ".instance"


@dataclass(frozen=True)
class ReplicaRecord:
    """The facts by which a later platform finds a replica again. The spec has no secrets; they are given again at each start."""

    spec: DeploymentSpec
    leader: GroupLeader
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, folder: Path) -> None:
        """Write the record in one step: a reader sees the old one or the new one."""
        given = asdict(self)
        del given["spec"]["secrets"]
        _write_in_one_step(folder / RECORD_NAME, json.dumps(given, indent=2))

    @staticmethod
    def read(folder: Path) -> ReplicaRecord | None:
        """Read the record; None if there is none, or if this version cannot read it."""
        try:
            given = json.loads((folder / RECORD_NAME).read_text())
            spec = given["spec"]
            return ReplicaRecord(
                DeploymentSpec(
                    spec["name"],
                    tuple(spec["command"]),
                    dict(spec["environment"]),
                    resources=_resources(spec["resources"]),
                    replicas=int(spec["replicas"]),
                    artifact_bytes=int(spec["artifact_bytes"]),
                    submission_id=str(spec["submission_id"]),
                ),
                _leader(given["leader"]),
                int(given["port"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def _leader(given: dict[str, Any]) -> GroupLeader:
    """The version before has written no ticks."""
    boot_id, ticks = given.get("boot_id"), given.get("ticks")
    since_boot = (str(boot_id), int(ticks)) if boot_id and ticks is not None else (None, None)
    return GroupLeader(int(given["pid"]), float(given["create_time"]), *since_boot)


def _resources(given: dict[str, Any]) -> Resources:
    """A newer version may have written further fields."""
    known = {field.name for field in fields(Resources)}
    return Resources(**{name: value for name, value in given.items() if name in known})


def read_instance(folder: Path) -> str:
    """Return the folder's id, made at the first call. It tells the processes of two data folders apart."""
    path = folder / INSTANCE_NAME
    if not path.exists():
        _write_in_one_step(path, secrets.token_hex(8))
    return path.read_text()


def _write_in_one_step(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.rename(path)
