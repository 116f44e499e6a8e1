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
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from guanaco.errors import DataDirInUse, InvalidSettings

PSEUDONYM_KEY = "pseudonym.key"
LOCK_PATIENCE_S = (
    3  # model servers touch the lock for a moment when they look whether the platform lives
)


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
        """The key of the user pseudonyms, made at the first call."""
        return self._secret(PSEUDONYM_KEY)

    def lend_key(self, folder: Path) -> None:
        """The same key for the data folder of another process of this platform."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / PSEUDONYM_KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(self.pseudonym_key().hex())

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

    def _secret(self, name: str) -> bytes:
        path = self.path / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return bytes.fromhex(path.read_text())
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        return bytes.fromhex(path.read_text())
