"""Reads YAML files without surprises: whatever is wrong with one is a ValueError."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 16


def parse_yaml(text: str | bytes, *, is_plain: bool = False) -> Any:
    """Parse YAML.

    Args:
        text: The YAML.
        is_plain: Whether aliases, a few lines of which can stand for gigabytes, and depths that take quadratic time are refused.

    Raises:
        ValueError: The text is no such YAML; the message says why.
    """
    import yaml

    try:
        if is_plain:
            _require_plain(text)
        return yaml.safe_load(text)
    except ValueError:
        raise
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        # PyYAML's own: `!!bool maybe`, `!!int ''`, `!!timestamp soon`, `1:1:…:1.5`
        raise ValueError("it has a value that is not of its type") from None


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
