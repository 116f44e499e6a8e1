"""The platform's side of the process that has imported vLLM and forks model servers (engine/fork_server.py).

    expect ──▶ it is started, at the lowest priority, and imports ── claim ──▶ it forks a server, which is the platform's
                        └── none was expected or claimed for KEEP_S ──▶ it is stopped; its servers stay

It is expected when a submission is checked, whose server is started some seconds later, and whenever a server is started:
those that start while it imports wait for it, so that several starts cost the imports once. While nobody starts a server
there is none, so an idle platform pays nothing for it.

It is the parent of the servers and tells of their ends. If it has ended, a server counts as one that an earlier platform
started: seen in /proc, of unknown exit status. Where it is not, or does not answer, a server is started by its command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from guanaco_server.clusters.local.processes import (
    MARKER_VARIABLE,
    GroupLeader,
    spawn,
    stop_group,
)
from guanaco_server.confinement import priority
from guanaco_server.formats.ranks import has_ranks

MODULE = "guanaco_server.engine.fork_server"
# The command that a forked server can take the place of.
SERVES = ("-m", "guanaco_server.engine.serve")
UNAVAILABLE = os.EX_UNAVAILABLE  # its exit status where there can be none
FOLDER_NAME = ".nursery"
LOG_NAME = "nursery.log"
TEMPORARY_NAME = "tmp"
COMMAND_BYTES = 16_384  # of the command line that a server will show
MARKER_BYTES = 128
KEEP_S = 900.0
CLAIM_S = 90.0  # its imports take 8 s of processor time, at low priority
OUTPUT_CHARS = 500
LINE_BYTES = 4_096
# It takes 0.6 GB, and a server as much as any.
MIN_AVAILABLE_BYTES = 3 * 1024**3
CGROUP = Path("/sys/fs/cgroup")  # of the container, with version 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """A model server to be: what follows the module in its command, the variables that it has beside ours, its marker."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    marker: str
    folder: Path

    def line(self) -> bytes:
        fields = {
            "arguments": self.arguments,
            "environment": dict(self.environment),
            "marker": (MARKER_VARIABLE, self.marker),
            "folder": str(self.folder),
        }
        return json.dumps(fields).encode() + b"\n"


class ForkedServer:
    """A model server whose parent is the fork server, which reports its end over ``claim``."""

    def __init__(self, pid: int, claim: socket.socket) -> None:
        """psutil.NoSuchProcess where it has ended already."""
        self.leader = GroupLeader.of(pid)
        self.exit_code: int | None = None
        self._claim: socket.socket | None = claim

    def is_running(self) -> bool:
        """Tell whether the server runs: its end was not reported, or, without a fork server, the process is there."""
        self._listen()
        if self._claim is None:
            return self.exit_code is None and self.leader.is_running()
        return True

    def reap(self) -> None:
        """Close it; the fork server has waited for it."""
        self._listen()
        self._close()

    def _listen(self) -> None:
        if self._claim is None:
            return
        with suppress(BlockingIOError, ConnectionError):
            if message := self._claim.recv(LINE_BYTES):
                self.exit_code = int(json.loads(message)["exit_code"])
            self._close()

    def _close(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


class ForkServerProcess:
    def __init__(
        self, folder: Path, python: Path, environment: Mapping[str, str], marker: str
    ) -> None:
        """Start it. OSError where there is no such Python."""
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / LOG_NAME
        self._temporary = Path(tempfile.mkdtemp(prefix="guanaco-"))
        self._link = folder / TEMPORARY_NAME  # so that a later platform can remove it
        with suppress(FileNotFoundError):
            self._link.unlink()
        self._link.symlink_to(self._temporary)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        try:
            with theirs, self._log.open("wb") as log:
                self._process = spawn(
                    [str(python), "-m", MODULE, str(theirs.fileno()), " " * COMMAND_BYTES],
                    {**environment, "HOME": str(self._temporary), "TMPDIR": str(self._temporary)},
                    marker.ljust(MARKER_BYTES, "."),
                    cwd=self._temporary,
                    stdout=log.fileno(),
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            self._forget()
            raise
        self._leader = GroupLeader.of(self._process.pid)
        priority.lower_until_raised(self._process.pid, priority.LOWEST)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._process.poll()

    async def fork(self, order: Order, log: int) -> ForkedServer | None:
        """Have it fork a server, after its imports. Return None if it does not; then there is no server."""
        priority.lower_until_raised(self.pid)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno(), log])
            async with asyncio.timeout(CLAIM_S):
                return await _hand_over_order(ours, order)
        except BaseException as error:
            ours.close()  # a server that was not told to go ends
            if isinstance(error, (OSError, psutil.NoSuchProcess)):
                return None
            raise

    async def stop(self) -> None:
        await stop_group(self._leader, self._process)
        self._forget()

    def forget_ended(self) -> str:
        """Remove what it has left, and return the last that it said."""
        output = ""
        with suppress(OSError):
            output = self._log.read_text(errors="replace")[-OUTPUT_CHARS:]
        self._forget()
        return output

    def _forget(self) -> None:
        self._control.close()
        self._link.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        shutil.rmtree(self._temporary, ignore_errors=True)


async def _hand_over_order(claim: socket.socket, order: Order) -> ForkedServer:
    """Give it the order, note its process id, and let it go. OSError where it has ended before."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(claim, order.line())
    answer: dict[str, Any] = json.loads(await loop.sock_recv(claim, LINE_BYTES) or b"{}")
    if "pid" not in answer:
        raise ChildProcessError("the forked server has ended, or the fork server has")
    born = ForkedServer(int(answer["pid"]), claim)
    await loop.sock_sendall(claim, b"\n")
    return born


class ForkServer:
    """At most one process, while servers are expected."""

    def __init__(
        self, folder: Path, python: Path, environment: Mapping[str, str], is_wanted: bool
    ) -> None:
        """``folder`` is the cluster's. There is no process unless ``is_wanted``."""
        self._folder = folder / FOLDER_NAME
        self._python = python
        self._environment = environment
        self._is_wanted = is_wanted and sys.platform == "linux"
        self._process: ForkServerProcess | None = None
        self._end: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def clear(self) -> None:
        """Remove what an earlier platform left; its processes are stopped by then."""
        with suppress(OSError):
            shutil.rmtree((self._folder / TEMPORARY_NAME).readlink(), ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def expect(self, marker: str) -> None:
        """Have it ready soon, if memory allows."""
        if not self._is_wanted:
            return
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEEP_S, self._release)
        self._forget_ended()
        if self._process is None and self._is_wanted and has_memory_left():
            with suppress(OSError):  # a missing engine is reported when it is needed
                self._process = ForkServerProcess(
                    self._folder, self._python, self._environment, marker
                )

    async def claim(
        self, command: tuple[str, ...], environment: Mapping[str, str], marker: str, log: Path
    ) -> ForkedServer | None:
        """Return a server that runs the command in the log's folder. Return None if it has to be started by its command."""
        self._forget_ended()
        if self._process is None or not self._can_run(command):
            return None
        order = Order(command[1 + len(SERVES) :], environment, marker, log.parent)
        with log.open("wb") as output:
            return await self._process.fork(order, output.fileno())

    def _can_run(self, command: tuple[str, ...]) -> bool:
        """Ranks start processes of their own, by vLLM's own ways, which nothing here has shown to work after a fork."""
        serves = (str(self._python), *SERVES)
        return command[: len(serves)] == serves and not has_ranks(command[len(serves) :])

    async def stop(self) -> None:
        self._is_wanted = False
        if self._end is not None:
            self._end.cancel()
        self._release()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _release(self) -> None:
        self._end = None
        process, self._process = self._process, None
        if process is not None:
            task = asyncio.create_task(process.stop(), name="stop the fork server")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _forget_ended(self) -> None:
        if self._process is None or (status := self._process.ended()) is None:
            return
        output = self._process.forget_ended()
        self._process = None
        if status == UNAVAILABLE:
            self._is_wanted = False
            logger.info(
                "model servers are started by their command: %s",
                output or "it is no CPU build of vLLM",
            )
        else:
            logger.warning(
                "the fork server of model servers has ended with status %d: %s", status, output
            )


def has_memory_left(beside_bytes: int = 0) -> bool:
    """Return whether the machine has memory for a process that only saves time, beside what it is known to take."""
    return _available_bytes() >= MIN_AVAILABLE_BYTES + beside_bytes


def _available_bytes() -> int:
    """Return what the machine has left, or the container that the platform runs in."""
    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError, KeyError):  # no such container, or "max"
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        words = (CGROUP / "memory.stat").read_text().split()
        given_back = int(dict(zip(words[::2], words[1::2], strict=False))["inactive_file"])
        free = min(free, limit - used + given_back)
    return free
