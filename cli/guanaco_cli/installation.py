"""The platform that is installed on this machine: its packages, its settings, and the engine's Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guanaco.errors import EngineMissing, GuanacoError
from guanaco_cli.console import console

if TYPE_CHECKING:
    from guanaco_server.settings import LoadedSettings, Settings


# Our own modules are in every wheel, and others of the packages that the server needs are on many machines anyway.
PLATFORM_MARK = "dbos"


@contextmanager
def needs_platform() -> Iterator[None]:
    """Turn the failed import of a platform package into a GuanacoError that names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise GuanacoError(
            f"The platform is not installed here ({error}).",
            hint="pip install 'guanaco-platform[server]'",
        ) from error


def has_platform() -> bool:
    """Tell whether the platform's packages are installed here; otherwise this is the light client."""
    from importlib.util import find_spec

    return find_spec(PLATFORM_MARK) is not None


def read_settings(given: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Return the settings in effect, and warn of those that were removed."""
    return load_settings(given, config).settings


def load_settings(given: Mapping[str, Any], config: Path | None = None) -> LoadedSettings:
    """Read the settings and where each comes from.

    Args:
        given: Values of command-line options; None stands for an option that was not given.
        config: The TOML file of ``--config``. Processes that this one starts read it too.

    Raises:
        InvalidSettings: A name or a value is wrong; the sentence names it.
    """
    with needs_platform():
        from guanaco_server import settings
    if config is not None:
        os.environ["GUANACO_CONFIG"] = str(config)
    python = find_engine_python()
    loaded = settings.load_settings(
        {name: value for name, value in given.items() if value is not None},
        found={"engine_python": python} if python else {},
    )
    for notice in loaded.notices:
        console.warn(notice)
    return loaded


def find_engine_python() -> Path | None:
    """Return GUANACO_ENGINE_PYTHON, else ``.venv-engine`` beside the working folder, the checkout or the virtual environment."""
    if named := os.environ.get("GUANACO_ENGINE_PYTHON"):
        return Path(named)
    candidates = (folder / ".venv-engine" / "bin" / "python" for folder in _folders())
    return next((python for python in candidates if python.exists()), None)


def require_engine_python() -> Path:
    python = find_engine_python()
    if python is None or not python.exists():
        named = f" at {python}" if python else ""
        raise EngineMissing(
            f"There is no engine environment (vLLM, torch, tensorizer){named}.",
            hint="`make engine` makes it in .venv-engine; GUANACO_ENGINE_PYTHON names another.",
        )
    return python


def _folders() -> Iterator[Path]:
    yield Path.cwd()
    yield Path(__file__).resolve().parents[2]  # the checkout, of an editable install
    yield Path(sys.prefix).parent
