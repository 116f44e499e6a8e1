"""Work on what a stranger wrote, in a child process that can be killed: a thread cannot.

    parent: run(module, folder, limits)      child: python -m module folder
            waits, at most wall_s                    imports, confine(limits, folder), works, tell(reason or None)
    parent: start(module)                    child: python -m module
            sends requests, reads answers            imports, confine_pipes(memory), answers until its parent has gone

The child gets no secret: neither the Hub token nor the ticket. The first kind tells one JSON object; a child that ends
without a word was ended by its limits, or crashed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from guanaco_server.confinement.packages import linked_packages
from guanaco_server.confinement.profiles import confine_checker, confine_computation

MAX_WORDS_BYTES = 10_000
BEGUN = b"begun"  # what goes wrong from then on is the fault of the files
ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH")
SETTINGS = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class ProcessLimits:
    """``cpu_s`` and ``memory_bytes`` count from when the child has imported what it needs."""

    cpu_s: int
    memory_bytes: int
    wall_s: float
    file_bytes: int


class Child(Protocol):
    """The part of a started child that its parent uses."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


class StartChild(Protocol):
    """``start``, or another way to start the same module with the same pipes and environment."""

    def __call__(self, module: str) -> Child: ...


def run(module: str, folder: Path, limits: ProcessLimits) -> str | None:
    """Return why the child refuses the folder's content, as the end of a sentence; None if it does not.

    The caller may be confined. It needs the folder around this one for itself.

    Raises:
        RuntimeError: The child ended before it had looked at the folder, which is nobody's fault but the platform's.
    """
    around = folder.absolute().parent
    with (
        linked_packages(around) as links,
        tempfile.TemporaryFile(dir=around) as words,
        tempfile.TemporaryFile(dir=around) as complaints,
    ):
        environment = child_environment()
        paths = [links, *filter(None, [environment.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-m", module, str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=complaints,
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            status = process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            return f"it takes more than {limits.wall_s:g} s"
        finally:
            process.kill()
            process.wait()
        words.seek(0)
        begun, _, verdict = words.read(MAX_WORDS_BYTES).partition(b"\n")
        if begun != BEGUN:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - MAX_WORDS_BYTES))
            why = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"{module} could not begin ({status}): {why or 'it says nothing'}")
        return _reason(status, verdict, limits)


def start(module: str) -> subprocess.Popen[bytes]:
    """Start a child that answers through its pipes: it has no argument, no error output and no secret."""
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        start_new_session=True,
    )


def end(child: Child) -> None:
    """End a child that ``start`` started, and wait until it is gone: not on an event loop."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            assert pipe is not None, "both are pipes"
            pipe.close()


def child_environment() -> dict[str, str]:
    """Return the variables of a child: none of them is a secret."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | SETTINGS


def confine_pipes(memory_bytes: int) -> None:
    """Take the limits of a child that ``start`` started upon this process, for good; it limits its CPU time by its own timer."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_bytes)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)
    confine_computation()


def confine(limits: ProcessLimits, folder: Path) -> None:
    """Take the limits upon this process, for good, leave it only this folder, and tell ``run`` that the work begins."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime) + 1 + limits.cpu_s
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_CPU, cpu_s)
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_bytes)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    confine_checker(folder)
    print(BEGUN.decode(), flush=True)


def tell(reason: str | None) -> None:
    """The child's verdict: None, or what is wrong as the end of a sentence."""
    shown = None if reason is None else "".join(c if c.isprintable() else " " for c in reason)[:300]
    print(json.dumps({"reason": shown}), flush=True)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _reason(status: int, words: bytes, limits: ProcessLimits) -> str | None:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it takes more than {limits.cpu_s} s of CPU time"
    if status != 0:
        return f"it takes more than {limits.memory_bytes // 10**6:,} MB of memory, or it is corrupt"
    try:
        fields = json.loads(words)
    except (ValueError, RecursionError):
        return "it is corrupt"
    if not isinstance(fields, dict):
        return "it is corrupt"
    reason = fields.get("reason")
    return None if reason is None else str(reason)
