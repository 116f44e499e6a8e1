"""Starting a model server of this machine, and knowing what became of it.

<folder>/replica.json    what was started: the spec, which process, which port
<folder>/server.log      what its current process has said
"""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    ReplicaPhase,
    ReplicaState,
)
from guanaco_server.clusters.local_processes import Leader, spawn, stop_group
from guanaco_server.clusters.local_records import RECORD_NAME, ReplicaRecord

HOST = "127.0.0.1"
LOG_NAME = "server.log"
LOG_BYTES = 1_048_576  # given at one call; the caller asks again


@dataclass
class LocalServer:
    """``child`` is None for a process that an earlier platform started: its exit status is not ours to know."""

    folder: Path
    record: ReplicaRecord
    child: subprocess.Popen[bytes] | None

    @staticmethod
    def found(folder: Path) -> LocalServer | None:
        """What an earlier platform wrote down."""
        record = ReplicaRecord.read(folder)
        return LocalServer(folder, record, child=None) if record else None

    def is_running(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return self.record.leader.is_running()

    def state(self) -> ReplicaState:
        if self.is_running():
            return ReplicaState(ReplicaPhase.RUNNING, self.record.endpoint)
        exit_code = None if self.child is None else self.child.returncode
        return ReplicaState(ReplicaPhase.EXITED, self.record.endpoint, exit_code)

    def has_orphans(self) -> bool:
        """Whether children of it outlive it."""
        return not self.is_running() and bool(self.record.leader.group())

    async def stop(self) -> None:
        """With everything that it started."""
        await stop_group(self.record.leader, self.child)

    def forget(self) -> None:
        """A platform that starts will not find it again."""
        (self.folder / RECORD_NAME).unlink(missing_ok=True)


@dataclass(frozen=True)
class ServerStarter:
    """``ports`` are the first and the last that may be used; ``environment`` comes in addition to a spec's own."""

    ports: tuple[int, int]
    environment: dict[str, str]

    def start(
        self, spec: DeploymentSpec, marker: str, folder: Path, taken: Collection[int]
    ) -> LocalServer:
        """One replica, on a free port that is not ``taken``, whether or not anybody listens there yet."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG_NAME).unlink(missing_ok=True)
        port = self._choose_port(taken)
        with (folder / LOG_NAME).open("wb") as log:
            child = spawn(
                [
                    part.replace("{port}", str(port)).replace("{host}", HOST)
                    for part in spec.command
                ],
                {**spec.environment, **spec.secrets, **self.environment},
                marker,
                cwd=folder,
                stdout=log.fileno(),
            )
        record = ReplicaRecord(replace(spec, secrets={}), Leader.of(child.pid), port)
        record.write(folder)
        return LocalServer(folder, record, child)

    def _choose_port(self, taken: Collection[int]) -> int:
        first, last = self.ports
        for port in random.sample(range(first, last + 1), last + 1 - first):
            if port not in taken and _is_free(port):
                return port
        raise OSError(f"no free port between {first} and {last}")


def read_lines(path: Path, offset: int) -> tuple[list[str], int]:
    """The whole lines since the offset. A log shorter than it is a new process's: read from its beginning."""
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
