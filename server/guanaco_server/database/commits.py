"""Tells loops when the database may have changed, so that an idle platform reads next to nothing.

One loop of each process asks the database for a version that every commit changes, whoever made it:

    SQLite      ``PRAGMA data_version``: microseconds, on a connection that never writes
    PostgreSQL  ``pg_current_snapshot()``: what is committed and visible now; one statement on a connection of its own

All other loops wait for it (``CommitWatch``). They hear of a commit sooner than if each looked by itself, and of each
other's work no more often than they can use.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

from guanaco_server.database.postgresql.direct import DirectConnection
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.waiting import happens

SQLITE_TICK_S = 0.25  # 40 µs each
POSTGRESQL_TICK_S = 0.5  # a statement each
LOOK_ANYWAY_S = 60.0  # for work that only the passing of time makes due

ReadVersion = Callable[[], Awaitable[object | None]]


class SqliteVersion:
    """A connection to SQLite's file that writes nothing, so that every commit is another connection's."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    async def read(self) -> int | None:
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


class PostgresqlVersion:
    """The set of transactions whose work is visible. It is the cluster's, so other databases there cause looks too."""

    def __init__(self, connection: DirectConnection) -> None:
        self._connection = connection

    async def read(self) -> str | None:
        import psycopg

        try:
            rows = await self._connection.fetch("SELECT pg_current_snapshot()::text", ())
        except (psycopg.Error, OSError):
            return None
        return str(rows[0][0])


class CommitSignal:
    """Asks for the version once a tick and tells every watch. A version that cannot be read counts as changed."""

    def __init__(self, read_version: ReadVersion, tick_s: float) -> None:
        self._read_version = read_version
        self._tick_s = tick_s
        self._watches: list[CommitWatch] = []
        self._seen: object | None = None
        self._background: Background | None = None

    def watch(self, woken: asyncio.Event | None = None) -> CommitWatch:
        """Return the watch of one loop. Setting ``woken`` ends its pause at once."""
        self._watches.append(CommitWatch(self, woken or asyncio.Event()))
        return self._watches[-1]

    async def look(self) -> None:
        """Tell the watches if anything was committed since the last look."""
        version = await self._read_version()
        if version is None or version != self._seen:
            self._seen = version
            for watch in self._watches:
                watch.changed.set()

    def start(self) -> None:
        """Begin to look; the first watch that waits does so."""
        if self._background is None:
            self._background = Background("commits")
            self._background.start(self._run())

    async def stop(self) -> None:
        if self._background is not None:
            await self._background.stop()
            self._background = None

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._tick_s)


class CommitWatch:
    """Tells one loop when to look at the database again. Each loop has its own."""

    def __init__(self, signal: CommitSignal, woken: asyncio.Event) -> None:
        self._signal = signal
        self.changed = asyncio.Event()
        self.changed.set()  # nothing was looked at before
        self._woken = woken

    def wake(self) -> None:
        """End the loop's pause now."""
        self._woken.set()

    async def wait(self, pause_s: float, at_most_s: float = LOOK_ANYWAY_S) -> bool:
        """Wait for ``pause_s``, then for a commit, ``at_most_s`` in all; a wake ends either.

        A commit after this returns is reported by the next call, and never missed.

        Returns:
            Whether anything was committed, or the watch was woken. False means that only the time is over.
        """
        self._signal.start()
        if not await happens(pause_s, self._woken) and not self.changed.is_set():
            await happens(max(0.0, at_most_s - pause_s), self._woken, self.changed)
        is_due = self._woken.is_set() or self.changed.is_set()
        self._woken.clear()
        self.changed.clear()
        return is_due

    def reset(self) -> None:
        """Have the next wait end after its pause: the look that the last one allowed has failed."""
        self.changed.set()
