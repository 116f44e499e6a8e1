"""Small files of artifacts that are in a bucket, kept on this machine: chat goes on while the bucket is away.

    <folder>/<key>/manifest.json, tokenizer.json, …   as they were read; the manifest says which files there are

A key stands for its content, so what is kept is never out of date. Each file is checked against its manifest when it
is read. While the bucket is away, the model servers' node cache is looked into too, which has the same layout.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from guanaco_server.artifacts.stores.store import checked_key
from guanaco_server.formats.manifest import MANIFEST_NAME, Manifest

MAX_BYTES = 512 * 1024**2  # some fifty large tokenizers

logger = logging.getLogger(__name__)


class KeptFiles:
    """Every call is synchronous and safe in any thread. ``node_cache`` is only read."""

    def __init__(self, folder: Path, node_cache: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._node_cache = node_cache
        self._max_bytes = max_bytes

    def find(self, key: str, path: str) -> bytes | None:
        """Return a file that is kept, or None. FileNotFoundError if the artifact has none of that name."""
        data = _read(self._folder / checked_key(key), path)
        if data is not None:
            with suppress(OSError):
                os.utime(self._folder / key)  # what was used last is kept longest
        return data

    def find_anywhere(self, key: str, path: str) -> bytes | None:
        """The same while the bucket is away: also of what a model server of this machine has fetched."""
        data = self.find(key, path)
        return data if data is not None else _read(self._node_cache / checked_key(key), path)

    def keep(self, manifest: Manifest, path: str | None = None, data: bytes = b"") -> None:
        """Keep the manifest, and a file of it if ``path`` names one. A full disk is no failure."""
        folder = self._folder / checked_key(manifest.key)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / MANIFEST_NAME, manifest.model_dump_json().encode())
            if path is not None:
                _write(folder / path, data)
            self._make_room(folder)
        except OSError as error:
            logger.warning("Small files of artifacts are not kept: %s.", error.strerror)

    def drop(self, key: str) -> None:
        shutil.rmtree(self._folder / checked_key(key), ignore_errors=True)

    def _make_room(self, kept: Path) -> None:
        folders = sorted(self._folders(), key=lambda folder: folder.stat().st_mtime)
        total = sum(map(_size, folders))
        for folder in folders:
            if total <= self._max_bytes:
                return
            if folder != kept:
                total -= _size(folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> Iterator[Path]:
        return (folder for folder in self._folder.iterdir() if folder.is_dir())


def _read(folder: Path, path: str) -> bytes | None:
    """Return a file, or None if it or its manifest is missing or not as it was written."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValidationError):
        return None
    if manifest.key != folder.name:
        return None
    if path == MANIFEST_NAME:
        return manifest.model_dump_json().encode()
    listed = {file.path: file for file in manifest.files}
    if path not in listed:
        raise FileNotFoundError(f"no {path} in artifact {folder.name}")
    with suppress(OSError):
        data = (folder / path).read_bytes()
        if hashlib.sha256(data).hexdigest() == listed[path].sha256:
            return data
    return None


def _write(path: Path, data: bytes) -> None:
    """Write in one step: a reader sees all of it or nothing."""
    unfinished = path.with_name(f".{uuid.uuid4().hex}.new")
    try:
        unfinished.write_bytes(data)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
