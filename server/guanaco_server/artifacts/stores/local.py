"""Artifacts in a folder of this machine.

    <root>/<key>/            a published artifact: manifest.json and the files it lists
    <root>/.staging/<key>/   what a serializer job is writing
    <root>/.trash/           artifacts on their way out

A rename moves an artifact from one to the next, so that none is ever seen in part.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import uuid
from pathlib import Path

from pydantic import ValidationError

from guanaco.errors import SerializerDied
from guanaco_server.artifacts.stores.store import MANIFEST_NAME, Manifest

KEY = re.compile(r"[0-9a-f]{8,128}")


class LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    async def find(self, key: str) -> Manifest | None:
        return await asyncio.to_thread(self._find, key)

    async def read(self, key: str, path: str) -> bytes:
        folder = self._published(key)
        file = folder / path
        if file.parent != folder:
            raise FileNotFoundError(f"no {path} in artifact {key}")
        return await asyncio.to_thread(file.read_bytes)

    async def begin(self, key: str) -> str:
        staging = self._staging(key)
        await asyncio.to_thread(self._make_empty, staging)
        return staging.as_uri()

    async def publish(self, key: str) -> Manifest:
        return await asyncio.to_thread(self._publish, key)

    async def discard(self, key: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._staging(key), ignore_errors=True)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._throw_away, self._published(key))

    def uri(self, key: str) -> str:
        return self._published(key).as_uri()

    async def free_bytes(self) -> int | None:
        self._root.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._root).free

    def _published(self, key: str) -> Path:
        return self._root / _checked(key)

    def _staging(self, key: str) -> Path:
        return self._root / ".staging" / _checked(key)

    def _find(self, key: str) -> Manifest | None:
        try:
            return Manifest.model_validate_json((self._published(key) / MANIFEST_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def _make_empty(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)

    def _publish(self, key: str) -> Manifest:
        staging, published = self._staging(key), self._published(key)
        if found := self._find(key):
            shutil.rmtree(staging, ignore_errors=True)
            return found
        manifest = _require_whole(staging, key)
        if published.exists():
            self._throw_away(published)
        staging.rename(published)
        _sync_folder(self._root)
        return manifest

    def _throw_away(self, folder: Path) -> None:
        """At once out of sight, then off the disk."""
        trash = self._root / ".trash"
        trash.mkdir(parents=True, exist_ok=True)
        doomed = trash / uuid.uuid4().hex
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)


def _checked(key: str) -> str:
    """Keys become folder names: anything but hexadecimal digits is a mistake of ours."""
    if not KEY.fullmatch(key):
        raise ValueError(f"not an artifact key: {key!r}")
    return key


def _require_whole(staging: Path, key: str) -> Manifest:
    try:
        manifest = Manifest.model_validate_json((staging / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        raise SerializerDied(
            "The serializer left no whole artifact: there is no manifest."
        ) from None
    except ValidationError as error:
        raise SerializerDied("The serializer left a manifest that cannot be read.") from error
    if manifest.key != key:
        raise SerializerDied("The serializer left the artifact of another key.")
    for file in manifest.files:
        path = staging / file.path
        if path.parent != staging or not path.is_file() or path.stat().st_size != file.size_bytes:
            raise SerializerDied(
                f"The serializer left no whole artifact: {file.path} is not as listed."
            )
    return manifest


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
