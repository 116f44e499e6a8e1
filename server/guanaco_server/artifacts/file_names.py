"""Names of a repo's files: each must be one file, the same one, on every file system."""

from __future__ import annotations

import unicodedata

from guanaco.errors import CorruptConfig
from guanaco_server.artifacts.hub.hub import RepoSnapshot

MAX_FILES = 10_000
MAX_PART_BYTES = 255  # of most file systems
FORBIDDEN_PARTS = frozenset({"", ".", "..", ".git"})
DEVICES = frozenset(
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"]
    + [f"{port}{number}" for port in ("COM", "LPT") for number in range(10)]
)  # open a device on Windows, with any extension


def check_names(snapshot: RepoSnapshot) -> None:
    """CorruptConfig for names that leave the folder, are no plain name, or that some file system cannot tell apart."""
    if len(snapshot.files) > MAX_FILES:
        raise CorruptConfig(
            f"The repo has {len(snapshot.files):,} files; {MAX_FILES:,} are allowed."
        )
    seen: dict[str, str] = {}
    for file in snapshot.files:
        if "\\" in file.path or not file.path.isprintable() or not _are_plain(file.path):
            raise CorruptConfig(f"The repo has a file with the forbidden name {file.path[:80]!r}.")
        other = seen.setdefault(_folded(file.path), file.path)
        if other != file.path:
            raise CorruptConfig(
                f"The repo has both {other[:80]!r} and {file.path[:80]!r}, which some file systems cannot tell apart.",
                hint="Rename or delete one of them.",
            )


def _are_plain(path: str) -> bool:
    return all(_is_plain(part) for part in path.split("/"))


def _is_plain(part: str) -> bool:
    is_device = part.partition(".")[0].rstrip().upper() in DEVICES
    is_short = len(part.encode()) <= MAX_PART_BYTES
    return part.casefold() not in FORBIDDEN_PARTS and is_short and not is_device


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
