"""Where the model server's Python is: an environment of its own, beside the platform's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from guanaco.errors import EngineMissing


def find_engine_python() -> Path | None:
    """GUANACO_ENGINE_PYTHON, else ``.venv-engine`` beside the working folder, the checkout or the virtual environment."""
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
