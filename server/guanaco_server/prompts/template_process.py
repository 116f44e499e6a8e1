"""Strangers' Jinja, rendered in a process that can be killed: a thread cannot, and a sandbox bounds no time.

    parent: TemplateProcess.render(jobs)     child: python -m guanaco_server.prompts.template_process
            sends the jobs                           renders them in Jinja's immutable sandbox,
            waits for the texts                      CPU_S of CPU time a request, MEMORY_BYTES in all

Loops within loops, a recursion through macros, a text of gigabytes or a power of ten digits too many: whatever
takes too long is ended by the child's own timer, which no template can stop, and a template that ended a child is
refused for a while. The child is kept warm, ends with its parent, and is given no secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from guanaco_server.serializer.confined import ENVIRONMENT

CPU_S = 0.5
WALL_S = 15.0  # on a machine that is busy with other things
MEMORY_BYTES = 256_000_000
MAX_ANSWER_BYTES = 64_000_000
REFUSED_S = 60.0  # after a template ended a child

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


class TemplateProcess:
    """One child, started when it is first needed. ``render`` blocks, and may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._refused: dict[str, float] = {}

    def render(self, jobs: Sequence[Job]) -> list[str]:
        """Each job's text; TemplateFault for the first that has none."""
        if not jobs:
            return []
        with self._lock:
            self._require_allowed(jobs)
            answer = self._ask([asdict(job) for job in jobs])
            if answer is None:
                until = time.monotonic() + REFUSED_S
                self._refused |= {job.template: until for job in jobs}
                raise TemplateOverrun(
                    f"it takes more than {CPU_S:g} s or {MEMORY_BYTES // 10**6} MB"
                )
        if (why := answer.get("error")) is not None:
            raise TemplateFault(str(why), int(answer["job"]))
        return [str(text) for text in answer["texts"]]

    def close(self) -> None:
        with self._lock:
            self._end()

    def _require_allowed(self, jobs: Sequence[Job]) -> None:
        for number, job in enumerate(jobs):
            until = self._refused.get(job.template)
            if until is None:
                continue
            if time.monotonic() < until:
                raise TemplateFault("it took too much time or memory a moment ago", number)
            del self._refused[job.template]

    def _ask(self, jobs: list[dict[str, Any]]) -> dict[str, Any] | None:
        """None if the child did not live to answer."""
        try:
            child = self._running()
            assert child.stdin is not None, "it is a pipe"
            assert child.stdout is not None, "it is a pipe"
            _send(child.stdin, jobs)
            if select.select([child.stdout], [], [], WALL_S)[0]:
                answer = _receive(child.stdout)
                if isinstance(answer, dict):
                    return answer
        except (OSError, ValueError):
            pass
        self._end()
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        self._child = subprocess.Popen(
            [sys.executable, "-s", "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
        return self._child

    def _end(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None, "both are pipes"
                pipe.close()


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
            jobs = _receive(sys.stdin.buffer)
        except ValueError:
            return
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # its signal ends this process
        answer = sandbox.answer(jobs)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(sys.stdout.buffer, answer)


def _confine() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
