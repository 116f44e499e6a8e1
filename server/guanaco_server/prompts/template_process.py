"""Strangers' Jinja, rendered in a process that can be killed: a thread cannot, and a sandbox bounds no time.

    parent: TemplateProcess.render(jobs)     child: python -m guanaco_server.prompts.template_process
            sends the jobs                           renders them in Jinja's immutable sandbox, in what is left
            waits for the texts                      of the prompt's CPU time, with MEMORY_BYTES in all

Loops within loops, a recursion through macros, a text of gigabytes or a power of ten digits too many: whatever
takes too long is ended by the child's own timer, which no template can stop, and a template that ended a child is
refused for a while. There are as many children as threads render at once; they are kept warm, end with their
parent, and are given no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from guanaco_server.serializer.confined import ENVIRONMENT

CPU_S = 0.25  # of a whole prompt; 200 messages take an honest template 5 ms, and gpt-oss's 20
COMPILE_S = 0.5  # of a child that sees a template for the first time; 65 KB of Jinja take that long
LEAST_S = 0.005  # less than a tick of the timer
WALL_S = 15.0  # on a machine that is busy with other things
MEMORY_BYTES = 256_000_000
MAX_ANSWER_BYTES = 64_000_000
REFUSED_S = 60.0  # after a template ended a child
MAX_REFUSED = 1_024
LATE = "it was not done in time"

LENGTH = struct.Struct(">I")


class TemplateFault(Exception):  # translated by each caller into its own error
    """A template could not be rendered; the text is the end of a sentence, ``job`` says which it was."""

    def __init__(self, why: str, job: int = 0) -> None:
        super().__init__(why)
        self.job = job


class TemplateOverrun(TemplateFault):
    """It took too much time or memory, and would again."""


@dataclass(frozen=True)
class Job:
    """A template with its variables. In a strict one, an unknown variable is an error and whitespace stays."""

    template: str
    variables: dict[str, Any]
    is_strict: bool = False


@dataclass
class Allowance:
    """The CPU time that a prompt may take, and has; ``until`` on ``time.monotonic`` somebody waits for it."""

    cpu_s: float = CPU_S
    until: float = float("inf")
    used_s: float = 0.0


class TemplateProcess:
    """Children, started when they are first needed. ``render`` blocks, and may be called from any thread."""

    def __init__(self, children: int = 1) -> None:
        self._children = [_Child() for _ in range(children)]
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()  # so that the warmest is next
        for child in self._children:
            self._idle.put(child)
        self._refused = _Refused()
        self._local = threading.local()

    @contextlib.contextmanager
    def allowance(self, given: Allowance) -> Iterator[None]:
        """Within, everything that this thread renders is one prompt."""
        self._local.allowance = given
        try:
            yield
        finally:
            del self._local.allowance

    def render(self, jobs: Sequence[Job]) -> list[str]:
        """Each job's text; TemplateFault for the first that has none."""
        if not jobs:
            return []
        self._refused.require_allowed(jobs)
        allowed: Allowance = getattr(self._local, "allowance", None) or Allowance()
        answer = self._ask(jobs, allowed)
        if answer is None:
            if time.monotonic() >= allowed.until:
                raise TemplateFault(LATE)
            self._refused.note(jobs)
            raise TemplateOverrun(_too_much(allowed))
        allowed.used_s += float(answer["cpu_s"])
        if (why := answer.get("error")) is not None:
            raise TemplateFault(str(why), int(answer["job"]))
        return [str(text) for text in answer["texts"]]

    def close(self) -> None:
        """What is being rendered meanwhile fails, and so does whatever comes after."""
        for child in self._children:
            child.kill()
        idle = [self._idle.get() for _ in self._children]
        for child in idle:
            child.end()
            self._idle.put(child)

    def _ask(self, jobs: Sequence[Job], allowed: Allowance) -> dict[str, Any] | None:
        left_s, wait_s = allowed.cpu_s - allowed.used_s, allowed.until - time.monotonic()
        if left_s <= 0:
            raise TemplateOverrun(_too_much(allowed))
        if wait_s <= 0:
            raise TemplateFault(LATE)
        child = self._idle.get()
        try:
            return child.ask(jobs, max(LEAST_S, left_s), min(WALL_S, wait_s))
        finally:
            self._idle.put(child)


class _Refused:
    """Templates that ended a child, by their hashes, each for ``REFUSED_S``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def require_allowed(self, jobs: Sequence[Job]) -> None:
        now = time.monotonic()
        with self._lock:
            if not self._until:
                return
            for number, job in enumerate(jobs):
                if now < self._until.get(_digest(job), now):
                    raise TemplateFault("it took too much time or memory a moment ago", number)

    def note(self, jobs: Sequence[Job]) -> None:
        """The oldest are forgotten first."""
        until = time.monotonic() + REFUSED_S
        with self._lock:
            for job in jobs:
                self._until[_digest(job)] = until
                self._until.move_to_end(_digest(job))
            while len(self._until) > MAX_REFUSED:
                self._until.popitem(last=False)


class _Child:
    """Used by one thread at a time; ``kill`` may be called by another, and is for good."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def ask(self, jobs: Sequence[Job], cpu_s: float, wait_s: float) -> dict[str, Any] | None:
        """None if the child did not live to answer."""
        try:
            process = self._running()
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            _send(process.stdin, {"jobs": [asdict(job) for job in jobs], "cpu_s": cpu_s})
            if select.select([process.stdout], [], [], wait_s)[0]:
                answer = _receive(process.stdout)
                if isinstance(answer, dict):
                    return answer
        except (OSError, ValueError):
            pass
        self.end()
        return None

    def kill(self) -> None:
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None, "both are pipes"
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.end()
        if self._is_closed:
            raise OSError("the platform stops")
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
        return self._process


def _digest(job: Job) -> bytes:
    return hashlib.sha256(job.template.encode("utf-8", "surrogatepass")).digest()


def _too_much(allowed: Allowance) -> str:
    return f"it takes more than {allowed.cpu_s:g} s or {MEMORY_BYTES // 10**6} MB"


def _send(pipe: IO[bytes], content: Any) -> None:
    data = json.dumps(content).encode()
    pipe.write(LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """What the other side sent; ValueError if it ended in between."""
    header = pipe.read(LENGTH.size)
    if len(header) < LENGTH.size:
        raise ValueError("the other side has gone")
    (length,) = LENGTH.unpack(header)
    if length > MAX_ANSWER_BYTES:
        raise ValueError("the other side sent too much")
    return json.loads(pipe.read(length))


def main() -> None:
    """In the child, until the parent has gone."""
    from guanaco_server.prompts.sandbox import Sandbox

    sandbox = Sandbox()
    _confine()
    while True:
        try:
            asked = _receive(sys.stdin.buffer)
        except ValueError:
            return
        signal.setitimer(signal.ITIMER_PROF, COMPILE_S)  # its signal ends this process
        sandbox.prepare(asked["jobs"])
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        answer = sandbox.answer(asked["jobs"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(sys.stdout.buffer, {**answer, "cpu_s": time.process_time() - began})


def _confine() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
