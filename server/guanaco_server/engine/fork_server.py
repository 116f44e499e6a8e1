"""A process that has imported vLLM, and forks a model server for each claim: imports are most of what a start takes.

    python -m guanaco_server.engine.fork_server SOCKET [padding]

    imports ──▶ waits ── a claim: a socket and a log ──▶ forks ──▶ a session, folder, marker and log of its own
                 ▲                                        │        ──▶ tells its process id ── is told to go ──▶ serves
                 └── its exit status is told ◀────────────┘
                 └── SOCKET ends: the platform is gone, or needs it no more ──▶ ends; its servers stay

A forked server cannot be told from one that was started by its command: its command line, its marker, its log, its
folders and its confinement are the same. The fork server never reads an order, which may hold secrets: its child does, from
the claim's socket. It has one thread, because a fork takes no other along and the confinement is a thread's own; where
the imports leave more than one, and on a GPU, there is no fork server (decision 0042).
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import select
import socket
import sys
import tempfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from guanaco_server.engine import serve

MODULE = "guanaco_server.engine.serve"  # the module that serves; what others see as its command
UNAVAILABLE = os.EX_UNAVAILABLE  # the exit status where there can be no fork server
CLAIM_FILES = 2  # the claim's socket and the log
# The first of four fields of /proc/self/stat, counted after the name, which may hold spaces.
COMMAND_START = 45


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    if not serve.is_cpu_build():
        sys.exit(UNAVAILABLE)
    environment = _shown_environment()
    import_everything()
    if (threads := thread_count()) > 1:
        print(f"vLLM's imports left {threads} threads: a fork takes one along.")
        sys.exit(UNAVAILABLE)
    if (order := ServerForker(control, environment).serve_claims()) is not None:
        serve.main(order["arguments"])


def import_everything() -> None:
    """Import what a server imports before it serves."""
    further = serve.CPU_ENVIRONMENT if serve.is_cpu_build() else {}
    os.environ.update({**serve.ENVIRONMENT, **further})
    from guanaco_server.engine import vllm_internals

    vllm_internals.import_all(is_cpu=bool(further))
    for name in further:
        os.environ.pop(name, None)  # the order says how many threads there may be
    gc.collect()
    gc.freeze()  # it is never garbage; looking at it would copy the pages that all servers share


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class ServerForker:
    def __init__(self, control: socket.socket, environment: bytes) -> None:
        self._control = control
        self._environment = environment
        self._events = select.poll()
        self._events.register(control, select.POLLIN)
        self._servers: dict[int, tuple[int, socket.socket]] = {}  # by pidfd

    def serve_claims(self) -> Any:
        """Fork a server for each claim. Return the order in a forked server, and None once there will be no more claims."""
        while True:
            for handle, _ in self._events.poll():
                if handle != self._control.fileno():
                    self._report_exit(handle)
                    continue
                _, files, _, _ = socket.recv_fds(self._control, 1, CLAIM_FILES)
                if len(files) != CLAIM_FILES:
                    return None
                if (order := self._fork(*files)) is not None:
                    return order

    def _fork(self, claim_file: int, log: int) -> Any:
        """Return the order in the forked server, and None in this process."""
        sys.stdout.flush()
        sys.stderr.flush()
        claim = socket.socket(fileno=claim_file)
        if pid := os.fork():
            os.close(log)
            handle = os.pidfd_open(pid)
            self._servers[handle] = pid, claim
            self._events.register(handle, select.POLLIN)
            return None
        self._control.close()
        for handle, (_, others) in self._servers.items():
            os.close(handle)
            others.close()
        return _run_order(claim, log, self._environment)

    def _report_exit(self, handle: int) -> None:
        pid, claim = self._servers.pop(handle)
        self._events.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        with claim:
            _send(claim, {"exit_code": os.waitstatus_to_exitcode(status)})


def _run_order(claim: socket.socket, log: int, environment: bytes) -> Any:
    """Be what the order says, tell the process id, and return the order when the platform has noted it."""
    os.setsid()
    with Path(os.devnull).open() as nothing:
        _replace({0: nothing.fileno(), 1: log, 2: log})
    os.close(log)
    with claim, claim.makefile("rb") as platform:
        if not (line := platform.readline()):
            os._exit(0)  # the claim was given up
        order = json.loads(line)
        os.environ.update(order["environment"])
        name, marker = order["marker"]
        os.environ[name] = marker
        os.chdir(order["folder"])
        sys.argv = [str(serve.__file__), *order["arguments"]]
        _forget_randomness()
        tempfile.tempdir = None
        _show(order, environment)
        if not _send(claim, {"pid": os.getpid()}) or not platform.readline():
            os._exit(0)
    return order


def _forget_randomness() -> None:
    """Draw again what was drawn at the imports; ``random`` does so by itself."""
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy" in sys.modules:
        import_module("numpy").random.seed()


def _replace(files: dict[int, int]) -> None:
    for place, file in files.items():
        os.dup2(file, place)


def _send(claim: socket.socket, what: dict[str, int]) -> bool:
    """Send one line. Return False if the platform does not listen any more."""
    try:
        claim.sendall(json.dumps(what).encode() + b"\n")
    except OSError:
        return False
    return True


def _show(order: dict[str, Any], environment: bytes) -> None:
    """Write the command line and the marker where /proc shows them; both were made long enough at the start."""
    (command_start, command_end), (start, end) = _areas()
    _overwrite(command_start, command_end, [sys.executable, "-m", MODULE, *order["arguments"]])
    name, marker = order["marker"]
    before = environment[: environment.rfind(f"{name}=".encode())]  # it is the last variable
    _overwrite(start, end, [before.decode(errors="surrogateescape") + f"{name}={marker}"])


def _shown_environment() -> bytes:
    _, (start, end) = _areas()
    return ctypes.string_at(start, end - start)


def _areas() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the kernel reads the command line and the environment that it shows of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    at = [int(field) for field in fields[COMMAND_START : COMMAND_START + 4]]
    return (at[0], at[1]), (at[2], at[3])


def _overwrite(start: int, end: int, parts: Iterable[str]) -> None:
    """Write the parts and zeros after them; what is too long is cut."""
    text = "\0".join(parts).encode(errors="surrogateescape")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, min(len(text), end - start - 1))


if __name__ == "__main__":
    main()
