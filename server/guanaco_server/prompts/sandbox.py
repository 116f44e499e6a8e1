"""Inside the template process: jobs rendered in Jinja's immutable sandbox, a fault as the end of a sentence."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from guanaco_server.serializer.chat_template import environment

MAX_OUTPUT_CHARS = 1_000_000
KEPT_TEMPLATES = 256

Answer = dict[str, Any]


class Sandbox:
    def __init__(self) -> None:
        self._loose = environment()
        self._loose.globals["strftime_now"] = _strftime_now
        self._strict = ImmutableSandboxedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
        )
        self._templates: OrderedDict[tuple[str, bool], Template] = OrderedDict()

    def prepare(self, jobs: list[dict[str, Any]]) -> None:
        """Compile what is not kept; what cannot be is for ``answer`` to say."""
        for job in jobs:
            with suppress(Exception):
                self._template(job["template"], job["is_strict"])

    def answer(self, jobs: list[dict[str, Any]]) -> Answer:
        """The texts, or the first fault."""
        texts = []
        for number, job in enumerate(jobs):
            try:
                texts.append(self._render(job))
            except MemoryError:
                return {"error": "it takes too much memory", "job": number}
            except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
                return {"error": _reason(error), "job": number}
        return {"texts": texts}

    def _render(self, job: dict[str, Any]) -> str:
        pieces, length = [], 0
        for piece in self._template(job["template"], job["is_strict"]).generate(job["variables"]):
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                raise ValueError(f"it writes more than {MAX_OUTPUT_CHARS:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _template(self, source: str, is_strict: bool) -> Template:
        key = (source, is_strict)
        if key not in self._templates:
            environment = self._strict if is_strict else self._loose
            self._templates[key] = environment.from_string(source)
            if len(self._templates) > KEPT_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates.move_to_end(key)
        return self._templates[key]


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
