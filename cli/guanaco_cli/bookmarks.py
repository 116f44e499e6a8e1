"""How far feedback was read, by server, submission and filter, beside the profile."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from guanaco.profile import profile_path

if TYPE_CHECKING:
    from guanaco.feedback_methods import Filters

NAME = "feedback-read.json"


def last_cursor(url: str, submission_id: str, filters: Filters) -> str | None:
    """Where the last reading through this filter ended; None before the first one, or with a file that is broken."""
    cursor = _read().get(_key(url, submission_id, filters))
    return cursor if isinstance(cursor, str) else None


def keep_cursor(url: str, submission_id: str, filters: Filters, cursor: str) -> None:
    path = _path()
    cursors = _read() | {_key(url, submission_id, filters): cursor}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(cursors, file, indent=2)
    Path(name).replace(path)


def _path() -> Path:
    return profile_path().with_name(NAME)


def _key(url: str, submission_id: str, filters: Filters) -> str:
    """What a filter leaves out has not been read."""
    given = {name: value for name, value in sorted(filters.items()) if value is not None}
    return f"{url} {submission_id} {urlencode(given)}".rstrip()


def _read() -> dict[str, object]:
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
