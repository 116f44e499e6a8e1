"""Tries out a repo's chat templates: each must compile and render a short conversation within a number of steps.

They are Jinja, and run in the model server with what transformers gives them: the immutable sandbox, loop
controls, ``{% generation %}``, raise_exception, strftime_now and tojson. A template that raises an exception
of its own accord (roles must alternate, say) has said what it wanted, and is fine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2.constants
import jinja2.debug  # noqa: F401 - Jinja imports both late, and a confined process opens no file
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from guanaco_server.confinement import confined
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.templates.metered_jinja import (
    CHECK_STEPS,
    MeteredEnvironment,
    StepLimitExceeded,
)

LIMITS = confined.ProcessLimits(cpu_s=20, memory_bytes=512_000_000, wall_s=120, file_bytes=100_000)
MAX_TEMPLATE_BYTES = 1_000_000
MAX_TEMPLATES = 32
MAX_OUTPUT_CHARS = 1_000_000
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
MESSAGES = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hi, how are you?"},
    {"role": "user", "content": "Fine, thanks."},
]


class TemplateRaised(TemplateError):
    """The template called raise_exception."""


def check_chat_templates(folder: Path) -> None:
    """Try out the templates of a folder in a child process; JobFailed for one that must not be served."""
    if not any((folder / name).exists() for name in (CONFIG_NAME, TEMPLATE_NAME)):
        return
    if reason := confined.run(__name__, folder, LIMITS):
        raise JobFailed("bad_chat_template", f"The chat template cannot be used: {reason}.")


def main() -> int:
    """Return why the folder's templates cannot be used. This runs in the child."""
    folder = Path(sys.argv[1])
    confined.confine(LIMITS, folder)
    try:
        confined.tell(refusal_of(folder))
    except MemoryError:
        return 1
    return 0


def refusal_of(folder: Path) -> str | None:
    """Return why the folder's templates cannot be used, None if they can. Call it in a confined process only."""
    try:
        config = _config(folder)
        for template in _templates(folder, config):
            _render(template, config)
    except (ValueError, RecursionError) as error:
        return str(error) if type(error) is ValueError else "it is corrupt or nested too deeply"
    return None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    config = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG_NAME} is not a JSON object")
    return config


def _templates(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """List the templates of the file and of the config, which has one, or several named ones."""
    named = config.get("chat_template") or []
    entries = named if isinstance(named, list) else [named]
    if len(entries) > MAX_TEMPLATES:
        raise ValueError(f"there are {len(entries):,} of them, and {MAX_TEMPLATES} are allowed")
    for entry in entries:
        template = entry.get("template") if isinstance(entry, dict) else entry
        if not isinstance(template, str):
            raise ValueError(f"{CONFIG_NAME} has a chat_template that is no text")
        yield template
    if (path := folder / TEMPLATE_NAME).exists():
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ValueError(f"{TEMPLATE_NAME} is over {MAX_TEMPLATE_BYTES:,} bytes")
        yield path.read_text("utf-8")


def _render(template: str, config: dict[str, Any]) -> None:
    """ValueError with what went wrong."""
    try:
        metered = environment(weighs_values=True)
        metered.meter.left = CHECK_STEPS
        compiled = metered.metered(template)
        length = 0
        for piece in compiled.generate(variables(config, MESSAGES)):
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                raise ValueError(f"it writes more than {MAX_OUTPUT_CHARS:,} characters")
    except TemplateRaised:
        return
    except StepLimitExceeded:
        raise ValueError(f"it takes more than {CHECK_STEPS:,} steps") from None
    except SecurityError:
        raise ValueError("it reaches for what the sandbox forbids") from None
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {_sentence(error)}") from None
    except (ValueError, MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
        raise ValueError(f"{type(error).__name__}: {_sentence(error)}") from None


def variables(
    config: dict[str, Any], messages: list[dict[str, str]], *, asks_for_reply: bool = True
) -> dict[str, Any]:
    """Return the variables that a model server gives a chat template; ``config`` is tokenizer_config.json."""
    given = {"messages": messages, "tools": None, "documents": None}
    return special_tokens(config) | given | {"add_generation_prompt": asks_for_reply}


def special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """Return the special tokens that tokenizer_config.json names, by name."""

    def text(token: Any) -> Any:
        return token.get("content") if isinstance(token, dict) else token

    return {name: text(config[name]) for name in SPECIAL_TOKENS if config.get(name) is not None}


def environment(*, weighs_values: bool = False) -> MeteredEnvironment:
    """Return the sandbox of chat templates. It counts their work; only a process of its own bounds memory."""
    environment = MeteredEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    if weighs_values:
        environment.weigh_values()
    return environment


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant says; here its body only is rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: Any) -> None:
    raise TemplateRaised(str(message))


def _strftime_now(form: str) -> str:
    from datetime import UTC, datetime

    return datetime(2025, 1, 1, tzinfo=UTC).strftime(form)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else "it failed"


if __name__ == "__main__":
    sys.exit(main())
