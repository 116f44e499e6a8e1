"""Artifacts kept on this node, so that the next server of the same model need not fetch it.

    <folder>/<key>/manifest.json, config.json, …   written first: they say how much room the artifact takes
    <folder>/<key>/model.tensors.part              being filled, by the process that holds fill.lock
    <folder>/<key>/model.tensors                   renamed to this when every hash was right: the copy is whole
    <folder>/<key>/used                            its time is that of the last use
    <folder>/.locks/<key>                          shared by all who use the artifact; who removes it needs it alone
    <folder>/.locks/room                           held while room is made

Locks are the kernel's: they fall with their process. Where root starts the servers, each is a user of its own, and the
folder is a group's that they have in common (confinement/privileges.py). A copy is verified each time it is loaded, so one that a
power cut spoilt is found out, and removed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from guanaco_server.engine.artifacts.errors import DamagedArtifactError
from guanaco_server.engine.artifacts.local_tensors import EVERYTHING, Selection, read_local
from guanaco_server.engine.artifacts.remote_tensors import read_remote
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest, TensorRecord

USED_NAME = "used"
LOCKS_NAME = ".locks"
TRASH_NAME = ".trash"
LOCK_MODE = 0o660  # each server may be a user of its own; they have a group in common
KEY = re.compile(r"[0-9a-f]{8,128}")

logger = logging.getLogger("vllm.guanaco")


class NodeCache:
    """At most ``max_bytes`` of artifacts; the least recently used ones go, never one that is in use."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder.absolute()
        self._max_bytes = max_bytes

    @staticmethod
    def usable(folder: Path, max_bytes: int) -> NodeCache | None:
        """Return the cache; None, with the reason in the log, if the folder cannot be written."""
        try:
            (folder / LOCKS_NAME).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("Nothing is cached: %s: %s.", folder, error.strerror)
            return None
        return NodeCache(folder, max_bytes)

    @contextmanager
    def in_use(self, key: str) -> Iterator[None]:
        """Keep the artifact from being removed until the end of the context."""
        with _locked(self._lock_path(key), fcntl.LOCK_SH):
            yield

    def find(self, key: str) -> tuple[Path, Manifest] | None:
        """Return the folder of an artifact that is whole on this node. Call it while ``in_use``."""
        folder = self._folder / key
        try:
            manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
        except (OSError, ValueError):
            return None
        sizes = {file.path: file.size_bytes for file in manifest.files}
        for name, size in {TENSORS_NAME: manifest.tensors_bytes, **sizes}.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                return None
        with suppress(PermissionError):  # a copy that a server of the version before has made
            _touch(folder)
        return folder, manifest

    def make_room(self, manifest: Manifest, small_files: Mapping[str, bytes]) -> Path | None:
        """Return the artifact's folder with its small files, to be filled; None, and why in the log, if there is no room. Call it while ``in_use``."""
        folder = self._folder / manifest.key
        try:
            with _locked(self._lock_path("room"), fcntl.LOCK_EX):
                if not self._evict_for(manifest):
                    return None
                folder.mkdir(exist_ok=True)
                _touch(folder)
                for name, data in small_files.items():
                    write_in_one_step(folder / name, data)
        except OSError as error:
            logger.warning("Artifact %s is not cached: %s.", manifest.key, error.strerror)
            return None
        return folder

    def _evict_for(self, manifest: Manifest) -> bool:
        need = manifest.size_bytes
        if need > self._max_bytes:
            return _refused(manifest.key, f"its {need:,} bytes are more than the cache may have")
        shutil.rmtree(self._folder / TRASH_NAME, ignore_errors=True)
        others = [
            path
            for path in self._folder.iterdir()
            if KEY.fullmatch(path.name) and path.name != manifest.key
        ]
        sizes = {path: _claimed_bytes(path) for path in sorted(others, key=_worth)}
        kept = sum(sizes.values())
        for path, size in sizes.items():
            is_left_over = not _is_whole(path)
            if (is_left_over or kept + need > self._max_bytes) and self._evict(path):
                kept -= size
        if kept + need > self._max_bytes:
            return _refused(manifest.key, f"{kept:,} bytes of the cache are in use")
        is_there = _is_whole(self._folder / manifest.key)
        if not is_there and shutil.disk_usage(self._folder).free < need:
            return _refused(manifest.key, os.strerror(errno.ENOSPC))
        return True

    def _evict(self, path: Path) -> bool:
        """Delete the folder. It is renamed first, in one step, so that nobody finds it."""
        with (
            suppress(BlockingIOError),
            _locked(self._lock_path(path.name), fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            trash = self._folder / TRASH_NAME
            trash.mkdir(exist_ok=True)
            doomed = path.rename(trash / uuid.uuid4().hex)
            shutil.rmtree(doomed, ignore_errors=True)
            logger.info("Artifact %s leaves the cache.", path.name)
            return True
        return False

    def _lock_path(self, name: str) -> Path:
        return self._folder / LOCKS_NAME / name


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    """BlockingIOError with LOCK_NB if another has it. A process forked meanwhile has it too, until this context ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open_lock(path)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing would leave it to processes forked meanwhile
        os.close(handle)


def _open_lock(path: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags, LOCK_MODE)
    except PermissionError:  # a server of the version before has made it, for root alone
        return os.open(path, os.O_RDONLY | flags, LOCK_MODE)


def _refused(key: str, why: str) -> bool:
    logger.warning("Artifact %s is not cached: %s.", key, why)
    return False


def _claimed_bytes(folder: Path) -> int:
    """Return the bytes that the artifact takes, also while it is being filled."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes()).size_bytes
    except (OSError, ValueError):
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _is_whole(folder: Path) -> bool:
    return (folder / TENSORS_NAME).exists()


def _worth(folder: Path) -> tuple[bool, float]:
    """Return the order of eviction: what a killed process left half filled, then the least recently used."""
    used = folder / USED_NAME
    return _is_whole(folder), used.stat().st_mtime if used.exists() else 0.0


def _touch(folder: Path) -> None:
    """A confined process may not set times: it writes, and the kernel sets them."""
    (folder / USED_NAME).write_bytes(b"\n")


LOCK_NAME = "fill.lock"
PART_NAME = f"{TENSORS_NAME}.part"


def read_through_cache(
    url: str, manifest: Manifest, folder: Path, selection: Selection = EVERYTHING
) -> Iterator[tuple[TensorRecord, memoryview]]:
    """Yield each wanted tensor, verified. After the last one the folder holds the whole file, if there was room."""
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
    """Read as ``read_local``, but remove a damaged copy, so that the next start fetches the artifact again."""
    try:
        yield from read_local(path, manifest, selection)
    except DamagedArtifactError as error:
        path.unlink(missing_ok=True)
        raise DamagedArtifactError(
            f"{str(error).rstrip('.')}; this node's copy was removed, and the next start fetches it again."
        ) from error


def write_in_one_step(path: Path, data: bytes) -> None:
    """Write the file in one step: a reader sees the old one or the new one."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def _filling(
    url: str, manifest: Manifest, folder: Path, selection: Selection
) -> Iterator[tuple[TensorRecord, memoryview]]:
    # All of it, also what this rank does not want: other ranks, and later servers, want the whole file.
    try:
        copy = _CacheCopy(folder / PART_NAME)
    except OSError as error:
        _say_not_cached(error)
        yield from read_remote(url, manifest, selection)
        return
    with closing(copy), closing(read_remote(url, manifest, sink=copy.write)) as tensors:
        for record, view in tensors:
            if selection.is_wanted(record.name):
                yield record, view
        copy.publish(folder / TENSORS_NAME)


class _CacheCopy:
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
        """Remove what was not published."""
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
    """Let one process in at a time. The lock ends with its process."""
    handle = _open_lock(folder / LOCK_NAME)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Another process fills %s: waiting for it.", folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
