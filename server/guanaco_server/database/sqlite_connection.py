"""aiosqlite's connection, with one trip to its thread for each statement.

aiosqlite makes a trip for each call: a cursor, the statement, its rows, the cursor's end. On a busy event loop each trip
back waits for everything else that is ready, so a statement waits four times. Here a statement, with its rows, is one.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import aiosqlite

MADE_FOR = "0.22"  # the aiosqlite whose ``_execute`` and ``_conn`` are used here; tests/unit/test_sqlite_connection.py
Rows = deque[Any]


class OneTripConnection(aiosqlite.Connection):
    """The methods of a connection that SQLAlchemy's dialect uses; its thread ends with the process."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True

    def cursor(self) -> OneTripCursor:  # type: ignore[override]
        return OneTripCursor(self)

    async def rollback(self) -> None:
        """Also called when a connection goes back to its pool; most have nothing to roll back."""
        if self.in_transaction:
            await super().rollback()

    async def call(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do some work with the connection in its thread."""
        return await self._execute(work, self._conn)  # type: ignore[no-untyped-call]


class OneTripCursor:
    """Holds all rows of its last statement."""

    arraysize = 1

    def __init__(self, connection: OneTripConnection) -> None:
        self._connection = connection
        self._rows: Rows = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> OneTripCursor:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> OneTripCursor:
        return await self._run(lambda cursor: cursor.execute(sql, parameters))

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> OneTripCursor:
        return await self._run(lambda cursor: cursor.executemany(sql, parameters))

    async def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size or self.arraysize, len(self._rows)))]

    async def fetchall(self) -> Rows:
        rows, self._rows = self._rows, deque()
        return rows

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._rows:
            yield self._rows.popleft()

    async def close(self) -> None:
        """Nothing is open: the thread has closed its own cursor."""

    async def _run(self, work: Callable[[sqlite3.Cursor], Any]) -> OneTripCursor:
        def run(connection: sqlite3.Connection) -> tuple[Any, ...]:
            cursor = connection.cursor()
            try:
                work(cursor)
                rows: Rows = deque(cursor.fetchall() if cursor.description else ())
                return rows, cursor.description, cursor.rowcount, cursor.lastrowid
            finally:
                cursor.close()

        told = await self._connection.call(run)
        self._rows, self.description, self.rowcount, self.lastrowid = told
        return self


def connect(database: str, **options: Any) -> OneTripConnection:
    """Connect as ``sqlite3.connect`` does, when it is awaited."""
    return OneTripConnection(lambda: sqlite3.connect(database, **options))
