"""Read the settings from arguments, the environment (``GUANACO_*``) and the TOML file that ``GUANACO_CONFIG`` names.

An earlier source wins over a later one. A name that is no setting stops the start, so that a misspelled setting is
never silently ignored.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from guanaco.errors import InvalidSettings
from guanaco.errors.validation import problems_of
from guanaco.json_files import refuse_repeated_keys
from guanaco.yaml_files import RepeatedKey
from guanaco_server.settings.settings import Settings
from guanaco_server.settings.variables import (
    CONFIG,
    OTHER_VARIABLES,
    PREFIX,
    REMOVED,
    is_service_link,
    is_test_variable,
)


class SettingSource(StrEnum):
    """The kinds of place that a setting's value comes from."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    FILE = "file"
    FOUND = "found"  # on this machine: the engine environment
    DEFAULT = "default"


@dataclass(frozen=True)
class LoadedSettings:
    """The settings, the source of each by name, and sentences that the operator should read."""

    settings: Settings
    sources: Mapping[str, SettingSource]
    config: Path | None
    notices: tuple[str, ...]


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    found: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Read and check every setting.

    Args:
        arguments: Values from the command line, by the setting's name.
        environ: The environment; the process's own where it is not given.
        found: Values that this machine suggests, weaker than every other source but the defaults.

    Raises:
        InvalidSettings: A name is unknown, a value is wrong, or the TOML file cannot be read.
    """
    environ = os.environ if environ is None else environ
    config = Path(environ[CONFIG]) if environ.get(CONFIG) else None
    texts = _settings_in(environ)
    in_file = _read_file(config) if config else {}
    _refuse_unknown(texts, in_file, config)
    layers = (
        (SettingSource.FOUND, dict(found or {})),
        (SettingSource.FILE, {name: value for name, value in in_file.items() if name not in REMOVED}),
        (SettingSource.ENVIRONMENT, {name: _parse(name, text) for name, text in texts.items() if name not in REMOVED}),
        (SettingSource.ARGUMENT, dict(arguments or {})),
    )  # fmt: skip
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.model_fields, SettingSource.DEFAULT)
    for source, layer in layers:
        values.update(layer)
        sources.update(dict.fromkeys(layer, source))
    settings = _validate(values, sources, config)
    return LoadedSettings(settings, sources, config, tuple(_notices(texts, in_file, config)))


def _settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are meant as settings, by the setting's name: known, removed and unknown ones."""
    names = {
        name: text
        for name, text in environ.items()
        if name.upper().startswith(PREFIX)
        and name.upper() not in OTHER_VARIABLES
        and not is_test_variable(name)
        and not is_service_link(name, text)
    }
    return {name[len(PREFIX) :].lower(): text for name, text in names.items()}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"The settings in {path} are not TOML: {error}.") from None
    except OSError as error:
        raise InvalidSettings(
            f"The settings in {path} cannot be read: {error.strerror}.",
            hint=f"{CONFIG} or --config names the file.",
        ) from None


def _refuse_unknown(
    texts: Mapping[str, str], in_file: Mapping[str, Any], config: Path | None
) -> None:
    known = Settings.model_fields.keys() | REMOVED
    sentences = [
        f"There is no setting {PREFIX}{name.upper()}; the nearest is {_nearest_variable(name)}."
        for name in texts
        if name not in known
    ]
    sentences += [
        f"There is no setting {name} ({config}); the nearest is {_nearest(name, Settings.model_fields)}."
        for name in in_file
        if name not in known
    ]
    if sentences:
        raise InvalidSettings(
            " ".join(sentences),
            hint="Correct it or remove it; docs/settings.md lists every setting.",
        )


def _nearest_variable(name: str) -> str:
    others = [other.removeprefix(PREFIX).lower() for other in OTHER_VARIABLES]
    return PREFIX + _nearest(name, [*Settings.model_fields, *others]).upper()


def _nearest(name: str, known: Iterable[str]) -> str:
    return max(known, key=lambda one: SequenceMatcher(None, name.lower(), one).ratio())


def _parse(name: str, text: str) -> Any:
    """Read lists, tuples and tables as JSON; pydantic reads every other value from the text itself."""
    if not _is_collection(Settings.model_fields[name].annotation):
        return text
    try:
        value = json.loads(text)
        refuse_repeated_keys(text)
        return value
    except RepeatedKey as error:
        raise InvalidSettings(f"{PREFIX}{name.upper()}: {error}.") from None
    except (ValueError, RecursionError):
        raise InvalidSettings(
            f"{PREFIX}{name.upper()}: It is not JSON, as lists and tables must be in the environment.",
            hint="""For example '["one", "two"]' or '{"name": 1}'.""",
        ) from None


def _is_collection(annotation: Any) -> bool:
    if get_origin(annotation) in (list, tuple, dict):
        return True
    return any(_is_collection(part) for part in get_args(annotation))


def _validate(
    values: Mapping[str, Any], sources: Mapping[str, SettingSource], config: Path | None
) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as error:
        wrong = [
            f"{_title(place, sources, config)}{_within(place)}: {text}"
            for place, text in problems_of(error)
        ]
        raise InvalidSettings(" ".join(wrong)) from None


def _title(place: str, sources: Mapping[str, SettingSource], config: Path | None) -> str:
    """Name a setting as its source writes it: ``--port``, ``GUANACO_PORT``, or ``port in guanaco.toml``."""
    name = place.partition(".")[0]
    match sources.get(name):
        case SettingSource.ARGUMENT:
            return f"--{name.replace('_', '-')}"
        case SettingSource.FILE:
            return f"{name} in {config}"
        case _:
            return f"{PREFIX}{name.upper()}"


def _within(place: str) -> str:
    """Name the part of a setting that is a list or a table."""
    inner = place.partition(".")[2]
    return f" ({inner})" if inner else ""


def _notices(
    texts: Mapping[str, str], in_file: Mapping[str, Any], config: Path | None
) -> Iterator[str]:
    for name in texts:
        if name in REMOVED:
            yield f"{PREFIX}{name.upper()} has no effect: {REMOVED[name]}"
    for name in in_file:
        if name in REMOVED:
            yield f"{name} in {config} has no effect: {REMOVED[name]}"
