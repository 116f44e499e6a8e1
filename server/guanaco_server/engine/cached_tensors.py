"""The tensors file of an artifact in the node's cache: read where it is whole, else filled while it is streamed.

Of several processes that need the same file, the one that gets the lock fetches it; the others wait, and map it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from guanaco_server.engine.artifact_errors import DamagedArtifactError
from guanaco_server.engine.local_tensors import read_local
from guanaco_server.engine.remote_tensors import read_remote
from guanaco_server.engine.selection import EVERYTHING, Selection
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest, TensorRecord

LOCK_NAME = "fill.lock"
PART_NAME = f"{TENSORS_NAME}.part"

logger = logging.getLogger("vllm.guanaco")


def read_through_cache(
    url: str, manifest: Manifest, folder: Path, selection: Selection = EVERYTHING
) -> Iterator[tuple[TensorRecord, memoryview]]:
    """Each wanted tensor, verified; the folder has the whole file when the last one was taken, if there was room."""
    path = folder / TENSORS_NAME
    if not path.exists():
        with _alone(folder):
            if not path.exists():
                yield from _filling(url, manifest, folder, selection)
                return
    yield from read_copy(path, manifest, selection)


def read_copy(
    path: Path, manifest: Manifest, selection: Selection = EVERYTHING
) -> Iterator[tuple[TensorRecord, memoryview]]:
    """As ``read_local``, but a damaged copy is removed, so that the next start fetches the artifact again."""
    try:
        yield from read_local(path, manifest, selection)
    except DamagedArtifactError as error:
        path.unlink(missing_ok=True)
        raise DamagedArtifactError(
            f"{str(error).rstrip('.')}; this node's copy was removed, and the next start fetches it again."
        ) from error


def write_in_one_step(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def _filling(
    url: str, manifest: Manifest, folder: Path, selection: Selection
) -> Iterator[tuple[TensorRecord, memoryview]]:
    # All of it, also what this rank does not want: other ranks, and later servers, want the whole file.
    try:
        copy = _Copy(folder / PART_NAME)
    except OSError as error:
        _say_not_cached(error)
        yield from read_remote(url, manifest, selection)
        return
    with closing(copy), closing(read_remote(url, manifest, sink=copy.write)) as tensors:
        for record, view in tensors:
            if selection.is_wanted(record.name):
                yield record, view
        copy.publish(folder / TENSORS_NAME)


class _Copy:
    """Written from several threads. When it cannot be written it says so once, and the stream goes on without it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_failed = False
        self._file = path.open("wb", buffering=0)

    def write(self, block: memoryview, offset: int) -> None:
        while len(block) and not self._is_failed:
            try:
                written = os.pwrite(self._file.fileno(), block, offset)
            except OSError as error:
                self._give_up(error)
                return
            block, offset = block[written:], offset + written

    def publish(self, path: Path) -> None:
        if not self._is_failed:
            self._path.rename(path)
            logger.info("The artifact is cached in %s.", path.parent)

    def close(self) -> None:
        """What was not published leaves nothing."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            if self._is_failed:
                return
            self._is_failed = True
            self._file.truncate(0)  # room for others, at once
        _say_not_cached(error)


def _say_not_cached(error: OSError) -> None:
    logger.warning("The artifact is streamed without being cached: %s.", error.strerror)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the lock falls with its process."""
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Another process fills %s: waiting for it.", folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
