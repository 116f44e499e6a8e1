"""Reads YAML files without surprises: whatever is wrong with one is a ValueError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guanaco.errors import InvalidInput

MAX_DEPTH = 16


class RepeatedKey(ValueError):
    """A mapping has a key twice, so one of the two values would be lost."""

    def __init__(self, key: str, line: int) -> None:
        super().__init__(f"line {line} repeats the key {key[:80]!r}")


def parse_yaml(text: str | bytes, *, is_plain: bool = False) -> Any:
    """Parse YAML.

    Args:
        text: The YAML.
        is_plain: Whether aliases, a few lines of which can stand for gigabytes, and depths that take quadratic time are refused.

    Raises:
        RepeatedKey: A mapping has a key twice.
        ValueError: The text is no such YAML; the message says why.
    """
    import yaml

    try:
        if is_plain:
            _require_plain(text)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _require_single_keys(root)
        return loader.construct_document(root)
    except ValueError:
        raise
    except yaml.YAMLError as error:
        raise ValueError(_what_is_wrong(error)) from None
    except (KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        # PyYAML's own: `!!bool maybe`, `!!int ''`, `!!timestamp soon`, `1:1:…:1.5`
        raise ValueError("it has a value that is not of its type") from None


def unreadable(path: Path, error: Exception) -> InvalidInput:
    """Return the error that says, in one sentence, why a file could not be parsed.

    Args:
        path: The file.
        error: What `parse_yaml` raised.
    """
    if isinstance(error, RepeatedKey):
        return InvalidInput(f"{path}: {error}.")
    if isinstance(error, RecursionError):
        return InvalidInput(f"{path} is nested too deeply.")
    if isinstance(error, UnicodeDecodeError):
        return InvalidInput(f"{path} is not UTF-8.")
    return InvalidInput(f"{path} is neither YAML nor JSON: {error}.")


def _what_is_wrong(error: Any) -> str:
    """Say where the text stops being YAML, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}: {problem}"


def _require_single_keys(root: Any) -> None:
    import yaml

    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, value in node.value:
                waiting.append(value)
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    raise RepeatedKey(key.value, key.start_mark.line + 1)
                keys.add(str(key.value))


def _require_plain(text: str | bytes) -> None:
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it refers back with an alias (*), which is not allowed here")
