"""A folder of backups: each is written under another name, and gets its own when it is whole.

20261122T191500Z/            a backup: its files, and backup.json, which lists them
.partial-20261122T191500Z/   one that is being written, or was being written when its process was killed
.lock                        held by whoever writes
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from guanaco.errors import BackupDamaged, BackupFailed
from guanaco_server.backups.document import (
    FORMAT,
    BackedUpFile,
    BackupDocument,
    fingerprint_of,
    seal_of,
)

DOCUMENT = "backup.json"
PARTIAL = ".partial-"
PIECE_BYTES = 1_048_576
ANOTHER = "Use another backup: `guanaco backup list` shows them."


class BackupFolder:
    """Only its owner may read what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @contextmanager
    def writing(self, at: datetime) -> Iterator[Path]:
        """Yield a folder to write a backup into, which is removed when the block raises.

        Raises:
            BackupFailed: The folder cannot be written, or another process writes a backup there.
        """
        staged = self.root / f"{PARTIAL}{at:%Y%m%dT%H%M%SZ}"
        with writable(self.root), self._alone():
            self._remove_leftovers()
            staged.mkdir(mode=0o700)
            try:
                yield staged
            finally:
                shutil.rmtree(staged, ignore_errors=True)  # it is gone already once it is finished

    def finish(self, staged: Path, document: BackupDocument) -> Path:
        """Write ``backup.json``, have all of it on the disk, and give the backup its name."""
        (staged / DOCUMENT).write_text(document.model_dump_json(indent=2) + "\n")
        for path in sorted(staged.rglob("*")):
            _onto_the_disk(path)
        _onto_the_disk(staged)
        final = self.root / staged.name.removeprefix(PARTIAL)
        staged.rename(final)
        _onto_the_disk(self.root)
        return final

    def finished(self) -> list[Path]:
        """List the finished backups, the oldest first."""
        if not self.root.is_dir():
            return []
        found = (path.parent for path in self.root.glob(f"*/{DOCUMENT}"))
        return sorted(path for path in found if not path.name.startswith("."))

    def find(self, named: Path) -> Path:
        """Return the backup of that path, or of that name in this folder; BackupDamaged when there is neither."""
        for path in (named, self.root / named):
            if path.is_dir():
                return path
        raise BackupDamaged(
            f"There is no backup {named}, neither from here nor in {self.root}.",
            hint="`guanaco backup list` shows them; --to names another folder of backups.",
        )

    def newest(self) -> Path:
        """Return the newest backup; BackupDamaged when there is none."""
        if not (found := self.finished()):
            raise BackupDamaged(
                f"There is no backup in {self.root}.", hint="`guanaco backup` makes one."
            )
        return found[-1]

    def keep(self, count: int) -> list[Path]:
        """Remove all but the newest backups, and return those that went."""
        gone = self.finished()[:-count]
        for path in gone:
            doomed = path.rename(path.with_name(PARTIAL + path.name))  # never half a backup
            shutil.rmtree(doomed)
        return gone

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupFailed(
                    f"Another backup is being written to {self.root}.",
                    hint="Wait until it has ended.",
                ) from None
            yield
        finally:
            os.close(handle)

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left; whoever holds the lock is the only writer."""
        for path in self.root.glob(f"{PARTIAL}*"):
            shutil.rmtree(path)


def files_of(folder: Path) -> tuple[BackedUpFile, ...]:
    """List the files of a folder, with their sums."""
    return tuple(
        BackedUpFile(
            path=path.relative_to(folder).as_posix(),
            size_bytes=path.stat().st_size,
            sha256=sum_of(path),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != DOCUMENT
    )


def read_backup(folder: Path, key: bytes | None = None) -> BackupDocument:
    """Read a backup's document, and see that every file is there and unchanged.

    ``key`` is the pseudonym key; where it is the backup's, the seal is looked at too.

    Raises:
        BackupDamaged: It is not whole, was changed, or a newer version has written it.
    """
    document = read_document(folder)
    if key is not None and any(one.fingerprint == fingerprint_of(key) for one in document.secrets):
        _require_sealed(folder, document, key)
    for file in document.files:
        _require_unchanged(folder, file)
    return document


def read_document(folder: Path) -> BackupDocument:
    """Read what a backup says of itself, and look at none of its files."""
    try:
        text = (folder / DOCUMENT).read_text()
        document = BackupDocument.model_validate_json(text)
    except FileNotFoundError:
        raise BackupDamaged(f"{folder} is no backup: it has no {DOCUMENT}.", hint=ANOTHER) from None
    except (OSError, UnicodeDecodeError, ValidationError):
        raise BackupDamaged(f"The {DOCUMENT} of {folder} cannot be read.", hint=ANOTHER) from None
    if document.format > FORMAT:
        raise BackupDamaged(
            f"The backup {folder} is of format {document.format}, and this Guanaco knows {FORMAT}.",
            hint=f"Use Guanaco {document.guanaco} or a newer one.",
        )
    return document


def _require_sealed(folder: Path, document: BackupDocument, key: bytes) -> None:
    if document.seal != seal_of((folder / DOCUMENT).read_text(), key):
        raise BackupDamaged(
            f"The {DOCUMENT} of {folder} was changed: its seal differs.", hint=ANOTHER
        )


def _require_unchanged(folder: Path, file: BackedUpFile) -> None:
    path = folder / file.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BackupDamaged(
            f"The backup names a file outside its folder: {file.path}.", hint=ANOTHER
        )
    if not path.is_file():
        raise BackupDamaged(f"The backup's file {path} is missing.", hint=ANOTHER)
    if (size := path.stat().st_size) != file.size_bytes:
        raise BackupDamaged(
            f"The backup's file {path} has {size:,} bytes and should have {file.size_bytes:,}.",
            hint=ANOTHER,
        )
    if sum_of(path) != file.sha256:
        raise BackupDamaged(
            f"The backup's file {path} was changed: its SHA-256 differs.", hint=ANOTHER
        )


def sum_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def writable(place: Path) -> Iterator[None]:
    """Turn an error of the operating system into BackupFailed: no room, no right, a disk that fails."""
    try:
        yield
    except OSError as error:
        raise BackupFailed(
            f"{error.filename or place} cannot be written: {error.strerror or error}.",
            hint="Free some room, or name another folder. Nothing that is whole was left or lost.",
        ) from None


def _onto_the_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
