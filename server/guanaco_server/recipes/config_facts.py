"""Reads numbers out of a config.json, which a stranger wrote; CorruptConfig names what is missing or wrong."""

from __future__ import annotations

from typing import Any

from guanaco.errors import CorruptConfig

MAX_NUMBER = 10**9  # no count in a config is larger; keeps products of them sane

Config = dict[str, Any]


def text_config(config: Config) -> Config:
    """The part that describes the language model: of a model that also sees, it is nested."""
    nested = config.get("text_config")
    if not isinstance(nested, dict):
        return config
    outer: Config = {
        k: config[k] for k in ("quantization_config", "torch_dtype", "dtype") if k in config
    }
    return outer | nested


def count(config: Config, *names: str) -> int:
    """The first of these that is there; a positive whole number."""
    found = optional_count(config, *names)
    if found is None:
        raise CorruptConfig(
            f"config.json does not say {names[0]}, without which nobody can plan where the model runs."
        )
    return found


def optional_count(config: Config, *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 < value <= MAX_NUMBER:
            raise CorruptConfig(f"config.json has an impossible {name}: {str(value)[:40]}.")
        return value
    return None


def number(config: Config, name: str, default: int = 0) -> int:
    """A whole number from 0, else the default."""
    value = config.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise CorruptConfig(f"config.json has an impossible {name}: {str(value)[:40]}.")
    return value
