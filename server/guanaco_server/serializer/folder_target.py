"""A target that is a folder: one file written in place, and renamed by the store when whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from guanaco_server.formats.manifest import TENSORS_NAME
from guanaco_server.serializer.journal import Journal
from guanaco_server.serializer.ticket import JOURNAL_NAME


class FolderTarget:
    identity = "folder"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_journal(self) -> bytes | None:
        path = self._folder / JOURNAL_NAME
        return path.read_bytes() if path.exists() and self._tensors.exists() else None

    def save_journal(self, content: bytes) -> None:
        self.put_file(JOURNAL_NAME, content)

    def put_file(self, name: str, content: bytes) -> None:
        unfinished = self._folder / f".{name}.new"
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._folder / name)
        _sync_folder(self._folder)

    def open_tensors(self, total_bytes: int, journal: Journal) -> FileSink:
        return FileSink(self._tensors, total_bytes, journal)

    @property
    def _tensors(self) -> Path:
        return self._folder / TENSORS_NAME


class FileSink:
    def __init__(self, path: Path, total_bytes: int, journal: Journal) -> None:
        self._journal = journal
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._handle, total_bytes)

    def is_written(self, start: int, end: int) -> bool:
        """What the journal lists was synced before it was listed."""
        return True

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        """A file takes its bytes in any order."""

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._handle, data, offset)
            data, offset = data[count:], offset + count
        self._journal.save_sometimes(self._sync)

    def finish(self) -> None:
        self._sync()
        os.close(self._handle)

    def _sync(self) -> None:
        os.fdatasync(self._handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
