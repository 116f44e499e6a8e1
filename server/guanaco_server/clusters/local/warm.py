"""Model servers that are started before their model is known (engine/warm.py), so that the imports are over by then.

    expect ──▶ one is started, unless there are enough ── claim ──▶ it serves a model, and is no longer warm
                        └── nobody has expected one for KEEP_S ──▶ it is stopped

Warm servers are expected when a submission is checked: its server is started some seconds later. None is made while
nobody submits, so an idle platform pays nothing for them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from guanaco_server.clusters.local.processes import (
    MARKER_VARIABLE,
    GroupLeader,
    spawn,
    stop_group,
)
from guanaco_server.confinement import priority

MODULE = "guanaco_server.engine.warm"
SERVES = (
    "-m",
    "guanaco_server.engine.serve",
)  # the command that a warm server can take the place of
FOLDER_NAME = ".warm"
COMMAND_BYTES = 16_384  # of the command line that it will show
MARKER_BYTES = 128
KEEP_S = 900.0
SAID_CHARS = 500
MIN_AVAILABLE_BYTES = (
    3 * 1024**3
)  # a warm one takes 0.6 GB, and the server that it becomes as much as any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmServer:
    """``order`` is the file from which it reads what to serve; ``temporary`` holds its home and its temporary files.

    ``link`` leads there for as long as it is nobody's, so that a later platform can remove it.
    """

    process: subprocess.Popen[bytes]
    leader: GroupLeader
    order: int
    temporary: Path
    link: Path
    log: Path

    def call(
        self, command: tuple[str, ...], environment: Mapping[str, str], marker: str, log: Path
    ) -> None:
        """Let it serve as the command says. OSError where it has ended meanwhile."""
        order = {
            "arguments": command[1 + len(SERVES) :],
            "environment": environment,
            "marker": (MARKER_VARIABLE, marker),
            "folder": str(log.parent),
        }
        assert self.process.stdin is not None, "started with a pipe"
        self.log.rename(log)  # with what it has said so far, an import that failed included
        os.write(self.order, json.dumps(order).encode())
        os.close(self.order)
        self.process.stdin.write(b"\n")
        self.process.stdin.close()

    async def discard(self) -> None:
        await stop_group(self.leader, self.process)
        self.forget()

    def forget(self) -> None:
        """Let go of what is left of it."""
        assert self.process.stdin is not None, "started with a pipe"
        self.process.stdin.close()
        os.close(self.order)
        self.link.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


class WarmServers:
    def __init__(
        self, folder: Path, python: Path, environment: Mapping[str, str], limit: int
    ) -> None:
        """``limit`` is how many may wait at a time; 0 makes none."""
        self._folder = folder / FOLDER_NAME
        self._python = python
        self._environment = environment
        self._limit = limit if hasattr(os, "memfd_create") else 0
        self._numbers = itertools.count()
        self._warm: list[WarmServer] = []
        self._end: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def clear(self) -> None:
        """Remove what an earlier platform left; its processes are stopped by then."""
        for link in self._folder.glob("*"):
            shutil.rmtree(link.resolve() if link.is_symlink() else link, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def expect(self, marker: str) -> None:
        """Have one ready soon, as far as limit and memory allow."""
        if self._limit == 0:
            return
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEEP_S, self._let_go)
        self._forget_ended()
        if len(self._warm) < self._limit and _has_room():
            with suppress(OSError):  # a missing engine is reported when it is needed
                self._warm.append(self._start(marker))

    def claim(self, command: tuple[str, ...]) -> WarmServer | None:
        """Return one that can run the command, if any; it is the caller's from now on."""
        if command[: 1 + len(SERVES)] != (str(self._python), *SERVES):
            return None
        self._forget_ended()
        if not self._warm:
            return None
        found = self._warm.pop(0)
        found.link.unlink(missing_ok=True)
        return found

    async def stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._let_go()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _start(self, marker: str) -> WarmServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="guanaco-"))
        home = temporary / "home"
        home.mkdir()
        link = self._folder / str(next(self._numbers))
        link.symlink_to(temporary)
        order = os.memfd_create("order")
        log = link.with_suffix(".log")
        with log.open("wb") as output:
            process = spawn(
                [str(self._python), "-m", MODULE, str(order), " " * COMMAND_BYTES],
                {**self._environment, "HOME": str(home), "TMPDIR": str(temporary)},
                marker.ljust(MARKER_BYTES, "."),
                cwd=temporary,
                stdin=subprocess.PIPE,
                stdout=output.fileno(),
                pass_fds=(order,),
            )
        priority.lower_until_raised(process.pid)
        return WarmServer(process, GroupLeader.of(process.pid), order, temporary, link, log)

    def _let_go(self) -> None:
        self._end = None
        warm, self._warm = self._warm, []
        for one in warm:
            task = asyncio.create_task(one.discard(), name="discard a warm server")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _forget_ended(self) -> None:
        for one in [one for one in self._warm if one.process.poll() is not None]:
            self._warm.remove(one)
            with suppress(OSError):
                said = one.log.read_text(errors="replace")
                logger.warning("a warm model server has ended: %s", said[-SAID_CHARS:])
            one.forget()


def _has_room() -> bool:
    return psutil.virtual_memory().available >= MIN_AVAILABLE_BYTES
