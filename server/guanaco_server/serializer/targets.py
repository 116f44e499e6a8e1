"""Defines where a job writes, and remembers what it has written so that a killed job can resume.

A target takes small files whole, and the tensors file as a sink: bytes at any offset, in any order, each once.
``FolderTarget`` is a folder of this machine, which the store renames when it is complete; ``UploadTarget``
(upload_target.py) is an S3 server behind presigned URLs.

The resume log lists only what is durable in the store. It is saved at most every INTERVAL_S; what was written after
the last save is written again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ValidationError

from guanaco_server.formats.manifest import TENSORS_NAME
from guanaco_server.serializer.task import JOURNAL_NAME

INTERVAL_S = 1.0


class Sink(Protocol):
    """The tensors file being written. Thread-safe."""

    def is_written(self, start: int, end: int) -> bool:
        """Return whether these bytes are durable already and need not be written again."""
        ...

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        """Wait until ``end`` is not too far ahead of the oldest bytes that are still unwritten."""
        ...

    def write(self, offset: int, data: memoryview) -> None: ...

    def finish(self) -> None:
        """Make all written bytes durable."""
        ...


class Target(Protocol):
    identity: str  # differs where bytes that were written before are gone

    def read_journal(self) -> bytes | None: ...

    def save_journal(self, content: bytes) -> None: ...

    def put_file(self, name: str, content: bytes) -> None:
        """A small file, whole or not at all."""
        ...

    def open_tensors(self, total_bytes: int, resume_log: ResumeLog) -> Sink: ...


class PieceFacts(BaseModel):
    sha256: str
    crc32: int


class ResumeLogState(BaseModel):
    """``pieces`` are by "tensor:piece"; ``parts`` are the uploaded parts' ETags by number, from 1."""

    plan: str
    upload: str
    pieces: dict[str, PieceFacts] = {}
    parts: dict[int, str] = {}


class ResumeLog:
    """Thread-safe. ``save`` makes bytes durable in the store; it is called at most every ``interval_s``."""

    def __init__(
        self,
        plan: str,
        upload: str,
        earlier: bytes | None,
        save: Callable[[bytes], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._save = save
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._saved_at = time.monotonic()
        self._state = _state(earlier, plan, upload)

    @property
    def pieces(self) -> dict[str, PieceFacts]:
        return self._state.pieces

    @property
    def parts(self) -> dict[int, str]:
        return self._state.parts

    def note_piece(self, key: str, facts: PieceFacts) -> None:
        with self._lock:
            self._state.pieces[key] = facts

    def note_part(self, number: int, etag: str) -> None:
        with self._lock:
            self._state.parts[number] = etag

    def save_sometimes(self, make_durable: Callable[[], None] = lambda: None) -> None:
        """Save what was noted before this call, after ``make_durable`` has made it true; at most every INTERVAL_S."""
        with self._lock:
            now = time.monotonic()
            if now - self._saved_at < self._interval_s:
                return
            self._saved_at = now
            noted = self._state.model_dump_json().encode()
        make_durable()
        self._save(noted)


def _state(earlier: bytes | None, plan: str, upload: str) -> ResumeLogState:
    state = None if earlier is None else read_resume_log(earlier)
    if state is not None and (state.plan, state.upload) == (plan, upload):
        return state
    return ResumeLogState(plan=plan, upload=upload)


def read_resume_log(data: bytes) -> ResumeLogState | None:
    """Return None for what is no resume log."""
    try:
        return ResumeLogState.model_validate_json(data)
    except ValidationError:
        return None


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

    def open_tensors(self, total_bytes: int, resume_log: ResumeLog) -> FileSink:
        return FileSink(self._tensors, total_bytes, resume_log)

    @property
    def _tensors(self) -> Path:
        return self._folder / TENSORS_NAME


class FileSink:
    def __init__(self, path: Path, total_bytes: int, resume_log: ResumeLog) -> None:
        self._resume_log = resume_log
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._handle, total_bytes)

    def is_written(self, start: int, end: int) -> bool:
        """Return True: the resume log lists only what was synced before."""
        return True

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        """A file takes its bytes in any order."""

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._handle, data, offset)
            data, offset = data[count:], offset + count
        self._resume_log.save_sometimes(self._sync)

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
