"""Artifacts in a folder of this machine.

    <root>/<key>/            a published artifact: manifest.json and the files it lists
    <root>/.staging/<key>/   what a serializer job is writing, its ticket and its journal
    <root>/.trash/           artifacts on their way out

A rename moves an artifact from one to the next, so that none is ever seen in part.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import ValidationError

from guanaco.errors import SerializerDied, StoreUnreachable
from guanaco_server.artifacts.stores.store import PIECE_BYTES, checked_key
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest
from guanaco_server.runtime import threads
from guanaco_server.serializer.task import JOURNAL_NAME, SerializerJob, SerializerTask, Upload

TICKET_NAME = "ticket.json"


class LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    async def check(self) -> None:
        try:
            await threads.STORE.run(self._try_out)
        except OSError as error:
            raise StoreUnreachable(
                f"The artifacts' folder {self._root} cannot be used: {error.strerror}.",
                hint="Check artifacts_dir, and who owns that folder.",
                is_lasting=True,
            ) from None

    async def find(self, key: str) -> Manifest | None:
        return await threads.STORE.run(self._find, key)

    async def read(self, key: str, path: str) -> bytes:
        return await threads.STORE.run(self._file(key, path).read_bytes)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        file = await threads.STORE.run(self._file(key, path).open, "rb")
        with file:
            while piece := await threads.STORE.run(file.read, PIECE_BYTES):
                yield piece

    def _file(self, key: str, path: str) -> Path:
        folder = self._published(key)
        file = folder / path
        if file.parent != folder:
            raise FileNotFoundError(f"no {path} in artifact {key}")
        return file

    async def list_keys(self) -> list[str]:
        return await threads.STORE.run(self._list_keys)

    async def begin(self, job: SerializerJob, max_bytes: int) -> str:
        return await threads.STORE.run(self._begin, job)

    async def publish(self, key: str) -> Manifest:
        return await threads.STORE.run(self._publish, key)

    async def discard(self, key: str) -> None:
        await threads.STORE.run(shutil.rmtree, self._staging(key), ignore_errors=True)

    async def discard_stale(self, older_than_s: float) -> list[str]:
        return await threads.STORE.run(self._discard_stale, time.time() - older_than_s)

    async def delete(self, key: str) -> None:
        await threads.STORE.run(self._remove_folder, self._published(key))

    def uri(self, key: str) -> str:
        return self._published(key).as_uri()

    async def access(self, key: str) -> dict[str, str]:
        manifest = await self.find(key)
        return {path: f"{self.uri(key)}/{path}" for path in manifest.paths} if manifest else {}

    def environment(self) -> dict[str, str]:
        return {}

    async def free_bytes(self) -> int | None:
        self._root.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._root).free

    def _published(self, key: str) -> Path:
        return self._root / checked_key(key)

    def _staging(self, key: str) -> Path:
        return self._root / ".staging" / checked_key(key)

    def _try_out(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._root) as probe:
            probe.write(b"probe")

    def _find(self, key: str) -> Manifest | None:
        try:
            return Manifest.model_validate_json((self._published(key) / MANIFEST_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def _list_keys(self) -> list[str]:
        folders = self._root.iterdir() if self._root.exists() else ()
        return sorted(path.name for path in folders if (path / MANIFEST_NAME).exists())

    def _begin(self, job: SerializerJob) -> str:
        staging = self._staging(job.key)
        staging.mkdir(parents=True, exist_ok=True)
        ticket = SerializerTask(**job.model_dump(), upload=Upload(folder=str(staging)))
        (staging / TICKET_NAME).touch(mode=0o600)
        (staging / TICKET_NAME).write_text(ticket.model_dump_json())
        return (staging / TICKET_NAME).as_uri()

    def _discard_stale(self, before: float) -> list[str]:
        stale = []
        for staging in (self._root / ".staging").glob("*"):
            if max(path.stat().st_mtime for path in (staging, *staging.iterdir())) < before:
                shutil.rmtree(staging, ignore_errors=True)
                stale.append(staging.name)
        return stale

    def _publish(self, key: str) -> Manifest:
        staging, published = self._staging(key), self._published(key)
        if found := self._find(key):
            shutil.rmtree(staging, ignore_errors=True)
            return found
        manifest = _require_whole(staging, key)
        for name in (TICKET_NAME, JOURNAL_NAME):
            (staging / name).unlink(missing_ok=True)
        if published.exists():
            self._remove_folder(published)
        _take_over(staging)
        staging.rename(published)
        _sync_folder(self._root)
        return manifest

    def _remove_folder(self, folder: Path) -> None:
        """Rename the folder out of sight at once, then delete it."""
        trash = self._root / ".trash"
        trash.mkdir(parents=True, exist_ok=True)
        doomed = trash / uuid.uuid4().hex
        try:
            folder.rename(doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)


def _require_whole(staging: Path, key: str) -> Manifest:
    for path in staging.glob("*"):
        if path.is_symlink() or not path.is_file():  # which would be read as the platform's own
            raise SerializerDied(f"The serializer left {path.name!r}, which is not a file.")
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
    sizes = {file.path: file.size_bytes for file in manifest.files}
    for name, size in {TENSORS_NAME: manifest.tensors_bytes, **sizes}.items():
        path = staging / name
        if path.parent != staging or not path.is_file() or path.stat().st_size != size:
            raise SerializerDied(f"The serializer left no whole artifact: {name} is not as listed.")
    return manifest


def _take_over(staging: Path) -> None:
    """Own what a job has written as a user of its own: only root starts such jobs."""
    if os.geteuid() == 0:
        for path in (staging, *staging.rglob("*")):
            os.chown(path, 0, os.getegid(), follow_symlinks=False)


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
