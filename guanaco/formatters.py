"""A prompt formatter by the name of a preset, or from a JSON or YAML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guanaco.errors import InvalidFormatter
from guanaco.problems import one_sentence
from guanaco.prompts import PRESETS, PromptFormatter

MAX_FILE_BYTES = 131_072  # five templates of 4,096 characters, escaped, fit
KEYS_HINT = "It maps " + ", ".join(PromptFormatter.model_fields) + " to templates."


def load_formatter(source: str | Path) -> PromptFormatter:
    """The preset of that name, else what the file holds. InvalidFormatter says what is wrong with it."""
    if isinstance(source, str) and source in PRESETS:
        return PRESETS[source]
    from pydantic import ValidationError

    try:
        return PromptFormatter.model_validate(_read(Path(source)))
    except ValidationError as error:
        raise InvalidFormatter(f"{source}: {one_sentence(error)}", hint=KEYS_HINT) from None


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InvalidFormatter(
            f"There is no prompt formatter {path}: neither a preset nor a file.",
            hint=f"The presets are {', '.join(PRESETS)}.",
        ) from None
    except OSError as error:
        raise InvalidFormatter(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidFormatter(f"{path} is over {MAX_FILE_BYTES:,} bytes.")
    return _parse(path, raw)


def _parse(path: Path, raw: bytes) -> Any:
    import yaml

    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text) if kind == "JSON" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InvalidFormatter(f"{path} is not {kind}: {reason}.", hint=KEYS_HINT) from None
    if not isinstance(value, dict):
        raise InvalidFormatter(f"{path} holds no mapping.", hint=KEYS_HINT)
    return value
