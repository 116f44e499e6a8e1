"""How far feedback was read, by server and submission, beside the profile."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from guanaco.profile import profile_path

NAME = "feedback-read.json"


def last_cursor(url: str, submission_id: str) -> str | None:
    """Where the last reading ended; None before the first one, or with a file that is broken."""
    cursor = _read().get(_key(url, submission_id))
    return cursor if isinstance(cursor, str) else None


def keep_cursor(url: str, submission_id: str, cursor: str) -> None:
    path = _path()
    cursors = _read() | {_key(url, submission_id): cursor}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(cursors, file, indent=2)
    Path(name).replace(path)


def _path() -> Path:
    return profile_path().with_name(NAME)


def _key(url: str, submission_id: str) -> str:
    return f"{url} {submission_id}"


def _read() -> dict[str, object]:
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
