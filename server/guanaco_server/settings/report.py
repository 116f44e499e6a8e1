"""The settings in effect, for `guanaco settings`: the value of each, its default and its source; secrets are masked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from guanaco_server.settings.settings import Settings
from guanaco_server.settings.sources import LoadedSettings, SettingSource
from guanaco_server.settings.url_passwords import mask_passwords
from guanaco_server.settings.variables import PREFIX

MASK = "********"
DATABASES = ("database_url", "database_replica_url")


@dataclass(frozen=True)
class SettingInEffect:
    """One setting. ``value`` and ``default`` are what JSON can hold."""

    name: str
    value: Any
    default: Any
    source: str
    is_changed: bool


def settings_in_effect(loaded: LoadedSettings) -> Iterator[SettingInEffect]:
    """Yield every setting, in the order of docs/settings.md."""
    fields = [field for part in parts() for field in part.model_fields.items()]
    for name, field in fields:
        value = getattr(loaded.settings, name)
        yield SettingInEffect(
            name=name,
            value=_database(value) if name in DATABASES else _format_value(value),
            default=_format_value(field.default),
            source=_source(name, loaded),
            is_changed=value != field.default,
        )


def parts() -> list[type[BaseModel]]:
    """Return the classes that Settings is put together from."""
    return [part for part in Settings.__bases__ if issubclass(part, BaseModel)]


def _source(name: str, loaded: LoadedSettings) -> str:
    match loaded.sources[name]:
        case SettingSource.ENVIRONMENT:
            return f"environment ({PREFIX}{name.upper()})"
        case SettingSource.FILE:
            return f"file ({loaded.config})"
        case SettingSource.ARGUMENT:
            return f"argument (--{name.replace('_', '-')})"
        case source:
            return source


def _database(url: SecretStr | None) -> str | None:
    """Return the URL without passwords: which host and database it is must be seen where one is looked for."""
    if url is None:
        return None
    return mask_passwords(url.get_secret_value(), MASK)


def _format_value(value: Any) -> Any:
    match value:
        case SecretStr():
            return MASK
        case Path():
            return str(value)
        case str():
            return mask_passwords(value, MASK)
        case list() | tuple():
            return [_format_value(one) for one in value]
        case dict():
            return {str(key): _format_value(one) for key, one in value.items()}
        case _:
            return value
