"""Renders strangers' Jinja in processes that can be killed: a thread cannot, and a sandbox bounds no memory.

    parent: TemplateProcess.render(jobs)     child: python -m guanaco_server.prompts.templates.sandbox
            sends the jobs                           renders them in Jinja's immutable sandbox, within the
            waits for the texts                      steps that the prompt has left

The limit is a number of steps (serializer/templates/metered_jinja.py), which is the same on every machine. It ends loops within
loops, a recursion through macros, and in the check of a submission also long texts and large numbers. Whatever the steps do
not count is ended by the child's CPU time, which is far more than the steps take, and by its memory. A template that
used up its steps or ended a child is refused for a while. There are as many children as threads render at once; they
are kept warm, end with their parent, and get no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from guanaco_server.confinement import confined
from guanaco_server.confinement.confined import Child, StartChild
from guanaco_server.confinement.frames import packed, receive
from guanaco_server.prompts.files.poet_parts import PoetPart
from guanaco_server.prompts.templates import sandbox
from guanaco_server.prompts.templates.files import TemplateFile
from guanaco_server.prompts.templates.sandbox import UNREADABLE

STEPS = 5_000_000  # of a whole prompt; 200 messages take Llama 3's template 7,000
CPU_S = 3.0  # of a whole prompt, as the last resort; the steps take a tenth of it
LEAST_S = 0.005  # less than a tick of the timer
WALL_S = 15.0  # on a machine that is busy with other things
REFUSED_S = 60.0  # after an overrun
MAX_REFUSED = 1_024
LATE = "it was not done in time"


class TemplateFault(Exception):  # translated by each caller into its own error
    """A template could not be rendered; the text is the end of a sentence, ``job`` says which it was."""

    def __init__(self, why: str, job: int = 0) -> None:
        super().__init__(why)
        self.job = job


class TemplateOverrun(TemplateFault):
    """It took too many steps or too much memory, and would again."""


@dataclass(frozen=True)
class Job:
    """A template with its variables. In a strict one, an unknown variable is an error and whitespace stays."""

    template: str
    variables: dict[str, Any]
    is_strict: bool = False


@dataclass
class Allowance:
    """The steps and bytes that one prompt may take and has taken; someone waits for it ``until`` a time on ``time.monotonic``.

    With ``weighs_values`` long texts and large numbers take steps too, which makes a template several times slower.
    """

    steps: int = STEPS
    weighs_values: bool = False
    cpu_s: float = CPU_S
    until: float = float("inf")
    used_steps: int = 0
    used_s: float = 0.0


class TemplateProcess:
    """Children, started when they are first needed. ``render`` blocks, and may be called from any thread."""

    def __init__(self, children: int = 1, start_child: StartChild = confined.start) -> None:
        self._children = [_Renderer(start_child) for _ in range(children)]
        self._idle: queue.LifoQueue[_Renderer] = queue.LifoQueue()  # so that the warmest is next
        for child in self._children:
            self._idle.put(child)
        self._refused = _RefusedTemplates()
        self._local = threading.local()

    @contextlib.contextmanager
    def allowance(self, given: Allowance) -> Iterator[None]:
        """Count everything that this thread renders within the block as one prompt."""
        self._local.allowance = given
        try:
            yield
        finally:
            del self._local.allowance

    def render(self, jobs: Sequence[Job]) -> list[str]:
        """Each job's text; TemplateFault for the first that has none."""
        if not jobs:
            return []
        return [str(text) for text in self._answer(jobs)["texts"]]

    def poet_parts(self, job: Job) -> list[PoetPart]:
        """Return the parts that a template in Prompt Poet's form makes; TemplateFault if it makes none."""
        parts = self._answer([job], makes_parts=True)["parts"]
        return [PoetPart(**{**part, "priority": int(part["priority"])}) for part in parts]

    def read(self, files: dict[str, bytes]) -> TemplateFile | None:
        """Return the chat template in a model's files, of which each is one of FILES; None if there is none. TemplateFault if they cannot be read."""
        request = {"files": {name: len(data) for name, data in files.items()}}
        child = self._idle.get()
        try:
            answer = child.ask(request, WALL_S, b"".join(files.values()))
        finally:
            self._idle.put(child)
        if answer is None or (fault := answer.get("error")) is not None:
            raise TemplateFault(UNREADABLE if answer is None else str(fault))
        if answer.get("template") is None:
            return None
        tokens = dict(answer["tokens"])
        return TemplateFile(
            str(answer["template"]), {str(name): str(text) for name, text in tokens.items()}
        )

    def close(self) -> None:
        """End the process; a rendering in progress fails, and so does every later one."""
        for child in self._children:
            child.kill()
        idle = [self._idle.get() for _ in self._children]
        for child in idle:
            child.end()
            self._idle.put(child)

    def _answer(self, jobs: Sequence[Job], makes_parts: bool = False) -> dict[str, Any]:
        self._refused.require_allowed(jobs)
        allowed: Allowance = getattr(self._local, "allowance", None) or Allowance()
        answer = self._ask(jobs, allowed, makes_parts)
        if answer is None:
            if time.monotonic() >= allowed.until:
                raise TemplateFault(LATE)
            self._refused.note(jobs)
            raise TemplateOverrun(
                f"it takes more than {allowed.cpu_s:g} s of CPU time, or it crashed"
            )
        if (overrun := answer.get("overrun")) is not None:
            self._refused.note(jobs)
            reason = "it takes too much memory" if overrun == "memory" else _too_many_steps(allowed)
            raise TemplateOverrun(reason, int(answer["job"]))
        allowed.used_s += float(answer["cpu_s"])
        allowed.used_steps += int(answer["steps"])
        if (fault := answer.get("error")) is not None:
            raise TemplateFault(str(fault), int(answer["job"]))
        return answer

    def _ask(
        self, jobs: Sequence[Job], allowed: Allowance, makes_parts: bool
    ) -> dict[str, Any] | None:
        left_s, wait_s = allowed.cpu_s - allowed.used_s, allowed.until - time.monotonic()
        if allowed.used_steps >= allowed.steps or left_s <= 0:
            raise TemplateOverrun(_too_many_steps(allowed))
        if wait_s <= 0:
            raise TemplateFault(LATE)
        child = self._idle.get()
        try:
            request = _request(jobs, allowed, max(LEAST_S, left_s)) | {"makes_parts": makes_parts}
            return child.ask(request, min(WALL_S, wait_s))
        finally:
            self._idle.put(child)


class _RefusedTemplates:
    """The hashes of templates that took too much, each for ``REFUSED_S``."""

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
                    raise TemplateFault(
                        "it took too many steps or too much memory a moment ago", number
                    )

    def note(self, jobs: Sequence[Job]) -> None:
        """The oldest are forgotten first."""
        until = time.monotonic() + REFUSED_S
        with self._lock:
            for job in jobs:
                self._until[_digest(job)] = until
                self._until.move_to_end(_digest(job))
            while len(self._until) > MAX_REFUSED:
                self._until.popitem(last=False)


class _Renderer:
    """A child, used by one thread at a time; ``kill`` may be called by another, and is for good."""

    def __init__(self, start_child: StartChild) -> None:
        self._start_child = start_child
        self._process: Child | None = None
        self._is_closed = False

    def ask(
        self, request: dict[str, Any], wait_s: float, data: bytes = b""
    ) -> dict[str, Any] | None:
        """Return None if the child did not live to answer."""
        try:
            process = self._running()
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            process.stdin.write(packed(request) + data)
            process.stdin.flush()
            if select.select([process.stdout], [], [], wait_s)[0]:
                answer = receive(process.stdout)
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
        confined.end(process)

    def _running(self) -> Child:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.end()
        if self._is_closed:
            raise OSError("the platform stops")
        self._process = self._start_child(sandbox.__name__)
        return self._process


def _digest(job: Job) -> bytes:
    return hashlib.sha256(job.template.encode("utf-8", "surrogatepass")).digest()


def _request(jobs: Sequence[Job], allowed: Allowance, cpu_s: float) -> dict[str, Any]:
    return {
        "jobs": [asdict(job) for job in jobs],
        "steps": allowed.steps - allowed.used_steps,
        "weighs_values": allowed.weighs_values,
        "cpu_s": cpu_s,
    }


def _too_many_steps(allowed: Allowance) -> str:
    return f"it takes more than {allowed.steps:,} steps"
