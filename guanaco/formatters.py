"""A prompt formatter by the name of a preset, or from a JSON or YAML file; a prompt file is one with ``parts``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guanaco.errors import InvalidFormatter
from guanaco.errors.validation import problems_of
from guanaco.json_files import refuse_repeated_keys
from guanaco.prompts import (
    CHAT_TEMPLATE,
    PRESETS,
    ChatTemplatePrompt,
    Prompt,
    PromptFile,
    PromptFormatter,
)
from guanaco.stored_prompts import PromptReference, read_reference
from guanaco.yaml_files import RepeatedKey, parse_yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_FILE_BYTES = 131_072  # five templates of 4,096 characters, escaped, fit
POET_SUFFIXES = (".j2", ".jinja")  # a template in Prompt Poet's form
KEYS_HINT = "It maps " + ", ".join(PromptFormatter.model_fields) + " to templates."
PARTS_HINT = "docs/prompts.md shows prompt files."
POET_HINT = "docs/prompts.md shows templates in Prompt Poet's form."
KIND_HINTS = {"file": PARTS_HINT, "poet": POET_HINT}


def load_formatter(source: str | Path) -> Prompt:
    """Return the preset of that name, the model's chat template, or what the file holds.

    Args:
        source: A preset's name, ``chat-template``, or the path of a JSON, YAML or Jinja file.

    Returns:
        The prompt, for `Client.submit` and `Client.render_prompt`.

    Raises:
        InvalidFormatter: There is neither a preset nor a file of that name, or the file is no prompt.
    """
    if isinstance(source, str) and source in PRESETS:
        return PRESETS[source]
    if source == CHAT_TEMPLATE:
        return ChatTemplatePrompt()
    if str(source).endswith(POET_SUFFIXES):
        text = _text(Path(source))
        if not text.strip():
            raise InvalidFormatter(f"{source} is empty.", hint=POET_HINT)
        return _validated(source, {"kind": "poet", "template": text})
    return _validated(source, _read(Path(source)))


def stored_reference(named: object) -> PromptReference | None:
    """Read the stored prompt that is named, as ``name@version``; a preset or a file of that name comes first."""
    reference = read_reference(named) if isinstance(named, str) else None
    if reference is None or str(named) in PRESETS or Path(str(named)).exists():
        return None
    return reference


def _validated(source: str | Path, content: dict[str, Any]) -> Prompt:
    from pydantic import TypeAdapter, ValidationError

    kind: Any
    if "parts" in content:
        kind, hint = PromptFile, PARTS_HINT
    elif "kind" in content:
        kind, hint = Prompt, KIND_HINTS.get(str(content["kind"]), KEYS_HINT)
    else:
        kind, hint = PromptFormatter, KEYS_HINT
    try:
        prompt: Prompt = TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise InvalidFormatter(f"{source}: {_sentence(error, content, kind)}", hint=hint) from None
    return prompt


def _sentence(error: ValidationError, content: dict[str, Any], kind: Any) -> str:
    """Write all problems on one line; of a part, with its name instead of its number."""
    return " ".join(
        f"{_named(place, content)}: {text}" if place else text
        for place, text in problems_of(error, kind)
    )


def _named(place: str, content: dict[str, Any]) -> str:
    match place.split("."):
        case ["parts", number, *rest] if number.isdigit() and isinstance(content["parts"], list):
            part = content["parts"][int(number)]
            name = part.get("name") if isinstance(part, dict) else None
            return " ".join([f"part {str(name)[:64]!r}" if name else f"part {number}", *rest])
    return place


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except ValueError:
        raise InvalidFormatter(f"{path} is not UTF-8.") from None


def _read(path: Path) -> dict[str, Any]:
    return _parse(path, _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InvalidFormatter(
            f"There is no prompt formatter {path}: neither a preset nor a file.",
            hint=f"The presets are {', '.join(PRESETS)}, each a set of five templates; {CHAT_TEMPLATE} is the model's own.",
        ) from None
    except OSError as error:
        raise InvalidFormatter(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InvalidFormatter(f"{str(path)!r} cannot be the name of a file.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidFormatter(f"{path} is over {MAX_FILE_BYTES:,} bytes.")
    return raw


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        text = raw.decode("utf-8-sig")
        value = _json(text) if kind == "JSON" else parse_yaml(text, is_plain=True)
    except RepeatedKey as error:
        raise InvalidFormatter(f"{path}: {error}.") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InvalidFormatter(f"{path} is not {kind}: {reason}.", hint=KEYS_HINT) from None
    if not isinstance(value, dict):
        raise InvalidFormatter(f"{path} holds no mapping.", hint=KEYS_HINT)
    return value


def _json(text: str) -> Any:
    value = json.loads(text)
    refuse_repeated_keys(text)
    return value
