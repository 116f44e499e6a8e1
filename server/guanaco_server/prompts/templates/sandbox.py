"""The template process: renders jobs in Jinja's immutable sandbox, and counts the steps that they take.

    parent (template_process.py)     {"jobs": […], "steps": 5000000, "weighs_values": false}
    this process                     {"texts": […], "steps": 812}  or  {"error": "…", "job": 0, "steps": 812}
                                     or  {"overrun": "steps", "job": 0}, or "memory"
    parent     the same with "makes_parts": true, for templates in Prompt Poet's form
    this process                     {"parts": [{"name": …}, …], "steps": 812}  or as above
    parent     {"files": {"tokenizer_config.json": n, …}} and n bytes for each
    this process                     {"template": "…", "tokens": {…}}  or  {"error": "…"}; the template may be null

Each message is JSON after its length. The steps are the limit that holds. CPU time is the last resort against what they
do not count: the process's own timer, which no template can stop, then ends the process.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from guanaco_server.confinement.confined import confine_pipes
from guanaco_server.confinement.frames import read_bytes, receive, send
from guanaco_server.prompts.files.poet_parts import read_parts
from guanaco_server.prompts.templates.files import read_template
from guanaco_server.serializer.templates.chat_template import environment
from guanaco_server.serializer.templates.metered_jinja import MeteredEnvironment, StepLimitExceeded

COMPILE_S = 10.0  # for templates seen for the first time; the longest that is allowed takes 1.5 s
UNREADABLE = "The chat template's files take too much memory to read, or are nested too deeply"
MEMORY_BYTES = 256_000_000
MAX_OUTPUT_CHARS = 1_000_000
KEPT_TEMPLATES = 256
WARM_UP_STEPS = 10_000
WARM_UP = (  # escapes, filters, the date, and each way to fail
    r"{{ 'a\n\u00e9' ~ (x | tojson(indent=2)) ~ (x | first | upper | trim) ~ ('%s' | format(1)) }}",
    "{{ strftime_now('%d %b %Y') }}",
    "{{ raise_exception('no') }}",
    "{{ nothing.at.all }}",
    "{{ ''.__class__.__mro__ }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% if %}",
)
WARM_UP_PARTS = ("- {name: a, content: b}", "- {")

Answer = dict[str, Any]


class Sandbox:
    """Renders templates, whose compiled forms it keeps."""

    def __init__(self) -> None:
        self._environments = {
            (is_strict, weighs): _environment(is_strict, weighs)
            for is_strict in (False, True)
            for weighs in (False, True)
        }
        self._templates: OrderedDict[tuple[str, bool, bool], Template] = OrderedDict()

    def prepare(self, jobs: list[dict[str, Any]], steps: int, weighs_values: bool) -> None:
        """Compile the templates that are not kept. ``answer`` reports what cannot be compiled."""
        self._allow(steps)
        for job in jobs:
            with suppress(Exception):
                self._template(job, weighs_values)

    def answer(
        self,
        jobs: list[dict[str, Any]],
        steps: int,
        weighs_values: bool,
        makes_parts: bool = False,
    ) -> Answer:
        """Return the texts or parts, or the first fault."""
        self._allow(steps)
        texts: list[str] = []
        parts: list[dict[str, Any]] = []
        for number, job in enumerate(jobs):
            try:
                texts.append(self._render(job, weighs_values))
                if makes_parts:
                    parts += [asdict(part) for part in read_parts(texts.pop())]
            except StepLimitExceeded:
                return {"overrun": "steps", "job": number}
            except MemoryError:
                return {"overrun": "memory", "job": number}
            except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
                if self._left() < 0:  # a filter has made another error of it
                    return {"overrun": "steps", "job": number}
                return {"error": _reason(error), "job": number, "steps": steps - self._left()}
        made = {"parts": parts} if makes_parts else {"texts": texts}
        return {**made, "steps": steps - self._left()}

    def read(self, files: dict[str, bytes]) -> Answer:
        """Find the chat template in a model's files."""
        try:
            found = read_template(files)
        except (ValueError, RecursionError, MemoryError) as error:
            return {"error": _reason(error) if type(error) is ValueError else UNREADABLE}
        return {"template": None} if found is None else asdict(found)

    def _allow(self, steps: int) -> None:
        for each in self._environments.values():
            each.meter.left = self._steps = steps

    def _left(self) -> int:
        """One request uses strict and other templates."""
        return self._steps - sum(
            self._steps - each.meter.left for each in self._environments.values()
        )

    def _render(self, job: dict[str, Any], weighs_values: bool) -> str:
        pieces, length = [], 0
        for piece in self._template(job, weighs_values).generate(job["variables"]):
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                raise ValueError(f"it writes more than {MAX_OUTPUT_CHARS:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _template(self, job: dict[str, Any], weighs_values: bool) -> Template:
        key = (job["template"], job["is_strict"], weighs_values)
        if key not in self._templates:
            self._templates[key] = self._environments[key[1:]].metered(key[0])
            if len(self._templates) > KEPT_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates.move_to_end(key)
        return self._templates[key]


def _environment(is_strict: bool, weighs_values: bool) -> MeteredEnvironment:
    if not is_strict:
        made = environment(weighs_values=weighs_values)
        made.globals["strftime_now"] = _strftime_now
        return made
    made = MeteredEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    if weighs_values:
        made.weigh_values()
    return made


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).strftime(form)


def _reason(error: Exception) -> str:
    if isinstance(error, SecurityError):
        return "it reaches for what the sandbox forbids"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    sentence = "".join(c if c.isprintable() else " " for c in lines[0][:200]).rstrip(".")
    return (
        f"line {error.lineno}: {sentence}" if isinstance(error, TemplateSyntaxError) else sentence
    )


@cache
def warm_sandbox() -> Sandbox:
    """Make a sandbox, and have Python and Jinja import what they import late: a confined process opens no file."""
    sandbox = Sandbox()
    for template in WARM_UP:
        for is_strict in (False, True):
            job = {"template": template, "variables": {"x": ["é"]}, "is_strict": is_strict}
            for weighs_values in (False, True):
                sandbox.answer([job], WARM_UP_STEPS, weighs_values)
    for template in WARM_UP_PARTS:
        sandbox.answer(
            [{"template": template, "variables": {}, "is_strict": False}],
            WARM_UP_STEPS,
            weighs_values=False,
            makes_parts=True,
        )
    return sandbox


def main() -> None:
    """Answer requests until the parent has gone."""
    sandbox = warm_sandbox()
    confine_pipes(MEMORY_BYTES)
    while True:
        try:
            asked = receive(sys.stdin.buffer)
        except ValueError:
            return
        signal.setitimer(signal.ITIMER_PROF, COMPILE_S)  # its signal ends this process
        if (sizes := asked.get("files")) is not None:
            files = {name: read_bytes(sys.stdin.buffer, size) for name, size in sizes.items()}
            answer = sandbox.read(files)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(sys.stdout.buffer, answer)
            continue
        work = (asked["jobs"], asked["steps"], asked["weighs_values"])
        sandbox.prepare(*work)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        answer = sandbox.answer(*work, makes_parts=asked.get("makes_parts", False))
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(sys.stdout.buffer, {**answer, "cpu_s": time.process_time() - began})


if __name__ == "__main__":
    main()
