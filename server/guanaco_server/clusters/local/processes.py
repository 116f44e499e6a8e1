"""Processes of this machine that belong to one platform. Each leads a process group and carries a marker.

The marker is an environment variable; it finds what an earlier platform process left. A child may hide its
environment (vLLM's engine does, by setting its title), so the whole group of a marked process is stopped.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

MARKER_VARIABLE = "GUANACO_PROCESS"
INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
)
STOP_S = 5.0  # between SIGTERM and SIGKILL; vLLM takes 0.4 s
KILLED_S = 5.0  # a killed process may still hang in the kernel for a moment
POLL_S = 0.05
CLOCK_SLACK_S = 2.0  # a start time on the wall clock moves when the clock is set

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


@dataclass(frozen=True)
class GroupLeader:
    """Names a process across restarts of the platform: a pid alone may be used again.

    ``boot_id`` and ``ticks``, since that boot, stay as they are when the machine's clock is set. A record of the version
    before has only ``create_time``, on the wall clock.
    """

    pid: int
    create_time: float
    boot_id: str | None = None
    ticks: int | None = None

    @staticmethod
    def of(pid: int) -> GroupLeader:
        created = psutil.Process(pid).create_time()
        return GroupLeader(pid, created, _boot_id(), _start_ticks(pid))

    def is_running(self) -> bool:
        process = self._process()
        return process is not None and _is_live(process)

    def carries(self, marker: str) -> bool:
        process = self._process()
        return process is not None and _marker(process) == marker

    def group(self) -> list[psutil.Process]:
        """Return the live processes of its group, which may outlive it. Return none if the pid belongs to another process now."""
        if self._process() is None and psutil.pid_exists(self.pid):
            return []
        return list(_groups({self.pid}))

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            return process if self._is_same_process(process) else None
        except psutil.NoSuchProcess:
            return None

    def _is_same_process(self, process: psutil.Process) -> bool:
        if self.boot_id is None or self.ticks is None:
            return bool(abs(process.create_time() - self.create_time) < CLOCK_SLACK_S)
        return (self.boot_id, self.ticks) == (_boot_id(), _start_ticks(self.pid))


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    marker: str,
    *,
    cwd: Path,
    stdout: int,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    memory_bytes: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a group leader whose environment is the allowed part of ours, and what is given."""
    program = str(Path(command[0]).absolute()) if "/" in command[0] else command[0]
    allowed = {name: os.environ[name] for name in INHERITED if name in os.environ}
    process = subprocess.Popen(
        [program, *command[1:]],
        env={**allowed, **environment, MARKER_VARIABLE: marker},
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    )
    if memory_bytes is not None:
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    return process


async def stop_group(leader: GroupLeader, child: subprocess.Popen[bytes] | None = None) -> None:
    """SIGTERM, then SIGKILL, to the whole group; a child of ours is reaped."""
    for signal_number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILLED_S)):
        deadline = time.monotonic() + patience_s
        _signal(leader.group(), signal_number)
        while time.monotonic() < deadline:
            if not leader.group():
                if child is not None:
                    child.wait()  # returns at once: what is left of it is a zombie
                return
            await asyncio.sleep(POLL_S)


async def kill_marked(prefix: str, spared: Iterable[GroupLeader]) -> list[int]:
    """Kill the group of each process whose marker starts so, except the groups that are spared."""
    marked = {
        pgid
        for process in psutil.process_iter()
        if (_marker(process) or "").startswith(prefix) and (pgid := _pgid(process.pid))
    }
    doomed = list(_groups(marked - {leader.pid for leader in spared} - {os.getpgrp()}))
    _signal(doomed, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_S
    while time.monotonic() < deadline:
        if not any(_is_live(process) for process in doomed):
            break
        await asyncio.sleep(POLL_S)
    return [process.pid for process in doomed]


def _groups(pgids: set[int]) -> Iterator[psutil.Process]:
    for pid in psutil.pids():
        if _pgid(pid) in pgids:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if _is_live(process):
                    yield process


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return when a process was started, in the kernel's ticks since it booted; None if it is gone. See proc_pid_stat(5), field 22."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(number)


def _pgid(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _is_live(process: psutil.Process) -> bool:
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def _marker(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARKER_VARIABLE)
    except (*_GONE, OSError):
        return None
