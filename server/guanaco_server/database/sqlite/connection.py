"""aiosqlite's connection, with one trip to its thread for each statement.

aiosqlite makes a trip for each call: a cursor, the statement, its rows, the cursor's end. On a busy event loop each trip
back waits for everything else that is ready, so a statement waits four times. Here a statement, with its rows, is one:
``execute_fetchall`` is one trip, and SQLite's connection in the thread returns all that there is to know as its rows.
What is executed while the connection carries out ``in_thread`` is no trip at all (trips.py).
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import aiosqlite

T = TypeVar("T")
Rows = deque[Any]

# A savepoint in place of a transaction, where a transaction is there already.
BEGIN_SAVEPOINT = "SAVEPOINT one"
UNDO_SAVEPOINT = "ROLLBACK TO one"
END_SAVEPOINT = "RELEASE one"


class StatementResult(NamedTuple):
    """The outcome of a statement."""

    rows: Rows
    description: Any
    rowcount: int
    lastrowid: int | None


@dataclass(frozen=True)
class Many:
    """The parameters of a statement that is executed once for each of them."""

    parameters: Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Work:
    """Stands in for parameters: it is done in place of the statement, and returns the outcome."""

    do: Callable[[ResultConnection], Any]


class ResultConnection(sqlite3.Connection):
    """SQLite's connection in the thread of aiosqlite. What it executes is over, and its rows are read, when it returns."""

    _is_durable: bool | None = None

    def be_durable(self, is_durable: bool) -> None:
        """Have commits reach the disk from now on, or not. Saying again what holds already costs nothing."""
        if is_durable is not self._is_durable:
            self.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")
            self._is_durable = is_durable

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        if isinstance(parameters, Work):
            return _Results(parameters.do(self))
        cursor = self.cursor()
        try:
            if isinstance(parameters, Many):
                cursor.executemany(sql, parameters.parameters)
            else:
                cursor.execute(sql, parameters)
            rows: Rows = deque(cursor.fetchall() if cursor.description else ())
            return _Results(
                StatementResult(rows, cursor.description, cursor.rowcount, cursor.lastrowid)
            )
        finally:
            cursor.close()


class _Results(NamedTuple):
    """Stands in for a cursor: ``fetchall`` returns the outcome."""

    outcome: Any

    def fetchall(self) -> Any:
        return self.outcome


class OneTripConnection(aiosqlite.Connection):
    """The methods of a connection that SQLAlchemy's dialect uses."""

    _trip: ResultConnection | None = None  # while a transaction is one trip
    _trip_thread = 0

    @property
    def _inside(self) -> ResultConnection | None:
        """Return the connection during a trip, to what is carried out in its thread: the event loop waits for the trip to end."""
        return self._trip if threading.get_ident() == self._trip_thread else None

    def cursor(self) -> OneTripCursor:  # type: ignore[override]
        return OneTripCursor(self)

    async def commit(self) -> None:
        if (inside := self._inside) is not None:
            inside.execute(END_SAVEPOINT)
        else:
            await super().commit()

    async def rollback(self) -> None:
        """Also called when a connection goes back to its pool; most have nothing to roll back."""
        if (inside := self._inside) is not None:
            inside.execute(UNDO_SAVEPOINT)
            inside.execute(END_SAVEPOINT)
        elif self.in_transaction:
            await super().rollback()

    async def run(self, sql: str, parameters: Any) -> StatementResult:
        """Execute a statement, and read its rows, in one trip to the thread; in none from ``in_thread``."""
        if (inside := self._inside) is not None:
            result: StatementResult = inside.execute(sql, parameters).fetchall()
            return result
        return await self.execute_fetchall(sql, parameters)  # type: ignore[return-value]

    async def in_thread(self, work: Callable[[ResultConnection], T]) -> T:
        """Do ``work`` in the thread, in one trip. Meanwhile the connection is used there, and nowhere else."""

        def do(inside: ResultConnection) -> T:
            self._trip, self._trip_thread = inside, threading.get_ident()
            try:
                return work(inside)
            finally:
                self._trip = None

        return await self.execute_fetchall("", Work(do))  # type: ignore[return-value]


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
        return await self._run(sql, parameters)

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> OneTripCursor:
        return await self._run(sql, Many(parameters))

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

    async def _run(self, sql: str, parameters: Any) -> OneTripCursor:
        outcome = await self._connection.run(sql, parameters)
        self._rows, self.description, self.rowcount, self.lastrowid = outcome
        return self


def connect(database: str, **options: Any) -> OneTripConnection:
    """Connect as ``sqlite3.connect`` does, when it is awaited. Its thread ends with the process."""
    made: list[OneTripConnection] = []

    def make() -> None:
        made.append(OneTripConnection(open_file, iter_chunk_size=64))

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(database, factory=ResultConnection, **options)

    # A thread takes over from the thread that makes it whether a process ends without it.
    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    maker.join()
    return made[0]
