"""Holds the style sheets, scripts and pictures of the pages in memory.

Each URL contains a hash of the file's content, so that browsers may cache the file for ever.
"""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
HASH_CHARS = 12


@dataclass(frozen=True)
class Asset:
    """One static file; ``version`` is the beginning of its SHA-256."""

    content: bytes
    media_type: str
    version: str


class Assets:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = {
            path.name: _read(path) for path in sorted(folder.iterdir()) if path.is_file()
        }

    def url(self, name: str) -> str:
        """Return the file's URL. KeyError for an unknown name, which is a mistake in a template."""
        return f"/static/{name}?v={self._assets[name].version}"

    def find(self, name: str) -> Asset | None:
        return self._assets.get(name)


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(content, media_type, hashlib.sha256(content).hexdigest()[:HASH_CHARS])
