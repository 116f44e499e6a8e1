"""Tells loops whether the database may have changed, so that an idle platform reads next to nothing.

SQLite counts the commits of all connections and processes (``PRAGMA data_version``); asking costs microseconds and
no trip to another thread. PostgreSQL has nothing as cheap, so there every look counts as changed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

LOOK_ANYWAY_S = 5.0  # for work that only the passing of time makes due

ReadVersion = Callable[[], int | None]


class CommitCounter:
    """A connection to SQLite's file that writes nothing, so that every commit is another connection's."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    def read(self) -> int | None:
        """Return a number that another commit changes, or None when it cannot be read."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self._file, timeout=0, isolation_level=None, check_same_thread=False
                )
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class CommitWatch:
    """Tells one loop whether to look at the database again. Each loop has its own."""

    def __init__(self, read_version: ReadVersion) -> None:
        self._read_version = read_version
        self._seen: int | None = None
        self._looked_at = float("-inf")

    def take(self) -> bool:
        """Return whether to look now: something was committed since the last True, or that was long ago.

        Call it before reading, so that a commit in between is reported again and never missed.
        """
        version, now = self._read_version(), time.monotonic()
        if version is not None and version == self._seen and now - self._looked_at < LOOK_ANYWAY_S:
            return False
        self._seen, self._looked_at = version, now
        return True

    def reset(self) -> None:
        """Make the next ``take`` return True: the look that the last one allowed has failed."""
        self._seen = None
