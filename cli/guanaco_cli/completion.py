"""Names of the caller's submissions for the shell: quick, silent when something is wrong, and kept for a moment.

bash splits a word at ``@``, and replaces what stands from there on: ``org/model@cham`` is three words to it, of which
``@cham`` is completed. ``mend_bash_words`` gives the command line its words back, and keeps what stands before the ``@`` aside.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

KEPT_S = 20.0
WAIT_S = 1.5  # for the server; the shell waits meanwhile
BEFORE_AT = "COMP_BEFORE_AT"  # what bash leaves as it is


def mend_bash_words(environment: MutableMapping[str, str]) -> None:
    """Undo bash's splitting at ``@`` in the words that it asks us to complete."""
    if environment.get("_GUANACO_COMPLETE") != "complete_bash":
        return
    words, asked = environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"])
    if "@" not in words[: asked + 1]:
        return
    mended: list[str] = []
    for number, word in enumerate(words[: asked + 1]):
        if number and "@" in (word, words[number - 1]):
            mended[-1] += word
        else:
            mended.append(word)
    if "@" in words[asked - 1 : asked + 1]:
        environment[BEFORE_AT], sign, rest = mended[-1].rpartition("@")
        mended[-1] = sign + rest
    environment["COMP_WORDS"] = "\n".join(mended)
    environment["COMP_CWORD"] = str(len(mended) - 1)


def complete_submissions(incomplete: str) -> list[str]:
    """Return the ids and aliases that begin so: aliases first, then the newest submissions first. Nothing when they cannot be read."""
    try:
        before = os.environ.get(BEFORE_AT, "")
        names = [name.removeprefix(before) for name in _names() if name.startswith(before)]
        return [name for name in names if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - the person is typing: an error here has no place to go
        return []


def complete_aliases(incomplete: str) -> list[str]:
    """Return the aliases that begin so."""
    return [name for name in complete_submissions(incomplete) if "@" in name]


def _names() -> list[str]:
    from guanaco.profile import Profile

    profile = Profile.load()
    owner = hashlib.sha256(f"{profile.url} {profile.key}".encode()).hexdigest()
    path = _cache_path()
    known = _read(path, owner)
    if known is not None:
        return known
    try:
        names = _ask()
    except Exception:  # noqa: BLE001 - a server that does not answer is not asked again at once
        names = []
    _keep(path, {"owner": owner, "at": time.time(), "names": names})
    return names


def _ask() -> list[str]:
    from guanaco.calls.submissions import submissions
    from guanaco_cli.connection import connect

    with connect() as client:
        call = replace(submissions(), is_repeatable=False, timeout_s=WAIT_S)
        found = client.transport.run(call)
    return [*(alias for one in found for alias in one.aliases), *(one.id for one in found)]


def _read(path: Path, owner: str) -> list[str] | None:
    """Return what was kept for this server and key, if it is young enough."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        is_young = 0 <= time.time() - kept["at"] < KEPT_S
        names = kept["names"] if kept["owner"] == owner and is_young else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def _keep(path: Path, kept: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)  # 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        Path(name).replace(path)
    except OSError:
        pass  # then it is asked again


def _cache_path() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "guanaco" / "completion.json"
