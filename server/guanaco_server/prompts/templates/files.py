"""Reads a model's chat template and special tokens from its files. Runs in the template process (sandbox.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guanaco_server.formats.json_objects import parse_json_object
from guanaco_server.serializer.templates.chat_template import (
    CONFIG_NAME,
    MAX_TEMPLATE_BYTES,
    TEMPLATE_NAME,
    special_tokens,
)

FILES = (TEMPLATE_NAME, CONFIG_NAME)
MAX_TOKEN_CHARS = 1_000


@dataclass(frozen=True)
class TemplateFile:
    """``tokens`` are the special tokens, such as bos_token, that the template may name."""

    template: str
    tokens: dict[str, str]


def read_template(files: dict[str, bytes]) -> TemplateFile | None:
    """Return what those of FILES that there are say; None if there is no template. ValueError with a sentence if they cannot be read."""
    raw = files.get(CONFIG_NAME)
    config = parse_json_object(CONFIG_NAME, raw) if raw is not None else {}
    own = files.get(TEMPLATE_NAME)
    if own is not None:
        template: Any = own.decode("utf-8", "replace")
    else:
        template = config.get("chat_template")
        if isinstance(template, list):
            named = {e.get("name"): e.get("template") for e in template if isinstance(e, dict)}
            template = named.get("default")
    if not isinstance(template, str) or not template:
        return None
    tokens = {name: text for name, text in special_tokens(config).items() if isinstance(text, str)}
    return TemplateFile(
        template[:MAX_TEMPLATE_BYTES],
        {name: text[:MAX_TOKEN_CHARS] for name, text in tokens.items()},
    )
