"""The one folder of a platform: who holds it, and the secrets that live in it.

guanaco.db workflows.db    SQLite, unless a PostgreSQL is named
artifacts/ cluster/        serialized models; model servers' state and logs
platform.lock              held while a platform runs; model servers watch it (engine/lifeline.py)
pseudonym.key              0600
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from guanaco.errors import DataDirInUse, InvalidSettings

PSEUDONYM_KEY = "pseudonym.key"
KEY_BYTES = 32
HEXADECIMAL = "hex:"  # what follows stands for its bytes, as all of the file does
BRING_BACK = "Bring the key back: with another one every user gets a new pseudonym."
LOCK_PATIENCE_S = (
    3  # model servers touch the lock for a moment when they look whether the platform lives
)


def key_of_setting(text: str) -> bytes:
    """Read the pseudonym key that the settings give: its characters, or after ``hex:`` what a key file holds."""
    if text.startswith(HEXADECIMAL):
        return _bytes_of(text.removeprefix(HEXADECIMAL), "GUANACO_PSEUDONYM_KEY")
    return _not_empty(text.encode(), "GUANACO_PSEUDONYM_KEY")


def key_of_file(path: Path) -> bytes:
    return _bytes_of(path.read_text(), str(path))


def _bytes_of(text: str, place: str) -> bytes:
    try:
        return _not_empty(bytes.fromhex(text), place)
    except ValueError:
        raise InvalidSettings(
            f"The pseudonym key in {place} is not hexadecimal.", hint=BRING_BACK
        ) from None


def _not_empty(key: bytes, place: str) -> bytes:
    if not key:
        raise InvalidSettings(f"The pseudonym key in {place} is empty.", hint=BRING_BACK)
    return key


class DataDir:
    """Entering takes the lock; DataDirInUse when another platform has it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock_path = self.path / "platform.lock"
        self.cluster_path = self.path / "cluster"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidSettings(
                f"The data folder {self.path} cannot be used: {error.strerror}.",
                hint="Choose another --data-dir.",
            ) from None
        self._take_lock(self._lock)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def pseudonym_key(self) -> bytes:
        """Return the key of the user pseudonyms, made at the first call."""
        path = self.path / PSEUDONYM_KEY
        if not path.exists():
            self._make_key(path)
        return key_of_file(path)

    def _make_key(self, path: Path) -> None:
        """Write a key beside, and give it its name when it is whole: a full disk or a kill leaves no part of one."""
        with tempfile.NamedTemporaryFile("w", dir=self.path, prefix=".key-") as file:  # mode 0600
            file.write(secrets.token_hex(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(file.name, path)

    def lend_key(self, folder: Path) -> None:
        """The same key for the data folder of another process of this platform."""
        self.pseudonym_key()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / PSEUDONYM_KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write((self.path / PSEUDONYM_KEY).read_text())

    def _take_lock(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise DataDirInUse(str(self.path)) from None
                time.sleep(0.05)
