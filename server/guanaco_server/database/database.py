"""The one way to the database: short units of work that commit or leave nothing.

A service method opens one unit, and never one around a network call: ``write_unit()`` to change something, else ``read()``.
A writer takes SQLite's write lock at its start, so that two queue (sqlite/writer_queue.py) instead of failing half-way.
``write()`` holds that lock for as many trips to a thread as it has statements, each of which waits for the event loop, and people
who chat wait for the lock: tests/unit/test_rules.py lists who may use it.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    CursorResult,
    Result,
    String,
    any_,
    cast,
    event,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import InstrumentedAttribute

from guanaco.errors import DatabaseUnavailable
from guanaco_server.database.commits import (
    POSTGRESQL_TICK_S,
    SQLITE_TICK_S,
    CommitSignal,
    CommitWatch,
    PostgresqlVersion,
    SqliteVersion,
)
from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.database.postgresql.direct import NETWORK, DirectConnection
from guanaco_server.database.postgresql.replica import WRITTEN, ReadReplica, is_writer
from guanaco_server.database.sqlite import connection as sqlite_connection
from guanaco_server.database.sqlite.connection import (
    BEGIN_SAVEPOINT,
    OneTripConnection,
    ResultConnection,
)
from guanaco_server.database.sqlite.log import LogEmptying, checkpoint
from guanaco_server.database.sqlite.trips import Write, carry_out, transact
from guanaco_server.database.sqlite.writer_queue import WriterQueue
from guanaco_server.observability.tracing import span
from guanaco_server.runtime import threads

UNAVAILABLE_HINT = "Start the database, or correct GUANACO_DATABASE_URL: `guanaco settings` shows where it comes from."
T = TypeVar("T")
Unit = Callable[[AsyncSession], Coroutine[Any, Any, T]]

TOLD = "told after the commit"
SQLITE_CONNECTIONS = 16  # kept open. Each further one is opened for a single use: two threads, and several passes of the loop
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
FULL_BYTES = 1_048_576  # with less room SQLite cannot even open its file
BUSY_TIMEOUT_S = 30  # a writer waits this long for another; the longest unit takes milliseconds


class Database:
    """Its errors name no value: what users wrote must not get into a log."""

    def __init__(self, url: str, replica_url: str | None = None) -> None:
        self.engine: AsyncEngine = (
            _sqlite_engine(url) if url.startswith("sqlite") else _postgresql_engine(url)
        )
        self._replica = (
            ReadReplica(_postgresql_engine(replica_url), self._written) if replica_url else None
        )
        self._writers = WriterQueue(BUSY_TIMEOUT_S) if url.startswith("sqlite") else None
        self._direct: list[DirectConnection] = []
        self._at_once: AsyncConnection | None = None
        self._urgent_writes = GroupCommit[Write[Any], Any](self._transact, turn=self._urgent_turn)
        self._log = LogEmptying(self._try_to_empty_log)
        self._sqlite_version: SqliteVersion | None = None
        self._commits = self._commit_signal()
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Open a transaction that commits when the block ends, and rolls back when it raises."""
        with span("database: write"):
            async with self._turn(is_urgent=False), self._sessions() as session:
                await session.connection(execution_options={"sqlite_begin": "BEGIN IMMEDIATE"})
                yield session
                await session.commit()
        _tell(session)

    async def write_unit(
        self, unit: Unit[T], *, is_urgent: bool = False, is_durable: bool = True
    ) -> T:
        """Do ``unit`` in a transaction, on SQLite in one trip to a thread: it holds the write lock no longer while the event loop is busy.

        So ``unit`` awaits the session only, and leaves alone what belongs to the event loop (``after_commit``).
        ``is_urgent``: somebody waits for a reply, so its turn comes before those of others. Urgent ones share a transaction.
        Without ``is_durable`` a failure of SQLite's machine, though not of a process, may undo what was written last.
        """
        if self._writers is None:
            async with self.write() as session:
                return await unit(session)
        context, loop = contextvars.copy_context(), asyncio.get_running_loop()

        def carry(_connection: ResultConnection) -> tuple[AsyncSession, T]:
            return context.run(carry_out, self._in_session(unit))

        def tell(done: tuple[AsyncSession, T]) -> None:
            if TOLD in done[0].info:
                loop.call_soon_threadsafe(_tell, done[0])

        write = Write(carry, is_durable, tell)
        _, result = await self._write_in_trip(write, is_urgent=is_urgent)
        return result

    async def write_at_once(
        self, work: Callable[[ResultConnection], T], *, is_durable: bool = True
    ) -> T:
        """Do as ``write_unit``, urgently, with plain SQL, on SQLite only.

        Raises:
            DBAPIError: The database refused it.
        """
        return await self._write_in_trip(Write(work, is_durable), is_urgent=True)

    async def _write_in_trip(self, write: Write[T], *, is_urgent: bool) -> T:
        result: T
        with span("database: write"):
            try:
                if is_urgent and self._writers is not None and self._writers.is_taken:
                    result = await self._urgent_writes.submit(write)
                    return result
                async with self._turn(is_urgent=is_urgent):
                    (result,) = await self._transact([write])
                if isinstance(result, Exception):
                    raise result
            except sqlite3.Error as error:
                raise DBAPIError.instance("a transaction", None, error, sqlite3.Error) from None
        return result

    def _urgent_turn(self) -> AbstractAsyncContextManager[None]:
        return self._turn(is_urgent=True)

    async def _transact(self, writes: Sequence[Write[Any]]) -> list[Any]:
        """Have its turn before."""
        return await self._in_thread(lambda inside: transact(inside, writes))

    async def _in_thread(self, work: Callable[[ResultConnection], T]) -> T:
        if self._at_once is None:
            connection = await self.engine.connect()
            self._at_once = await connection.execution_options(sqlite_begin=BEGIN_SAVEPOINT)
        raw = await self._at_once.get_raw_connection()
        assert isinstance(raw.driver_connection, OneTripConnection)
        return await raw.driver_connection.in_thread(work)

    async def _in_session(self, unit: Unit[T]) -> tuple[AsyncSession, T]:
        session = AsyncSession(self._at_once, expire_on_commit=False)
        try:
            result = await unit(session)
            await session.commit()
        finally:
            await session.close()
        return session, result

    @property
    def is_writing(self) -> bool:
        """Tell whether this task holds SQLite's write lock, for which others wait."""
        return self._writers is not None and self._writers.is_held_here

    @property
    def has_one_writer(self) -> bool:
        """Tell whether every writer waits for the one before, as on SQLite."""
        return self._writers is not None

    def _turn(self, *, is_urgent: bool) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._writers is None else self._writers.turn(is_urgent=is_urgent)

    @asynccontextmanager
    async def read(self, *, may_be_stale: bool = False) -> AsyncIterator[AsyncSession]:
        """Open a transaction that is rolled back at its end.

        ``may_be_stale``: what is read may be some seconds old (postgresql/replica.py), so a replica may be asked, where there is one.
        """
        with span("database: read"):
            async with await self._session(may_be_stale) as session:
                yield session

    async def read_unit(self, unit: Unit[T]) -> T:
        """Do ``unit`` in a transaction that only reads, on SQLite in one trip to a thread, where its rows are decoded too.

        For what reads thousands of rows: the event loop would stand still for 100 ms.
        """
        if self._writers is None:
            async with self.read() as session:
                return await unit(session)
        context = contextvars.copy_context()
        with span("database: read"):
            async with self.engine.connect() as connection:
                inside = await connection.execution_options(sqlite_begin=BEGIN_SAVEPOINT)
                raw = (await inside.get_raw_connection()).driver_connection
                assert isinstance(raw, OneTripConnection)
                trip = asyncio.ensure_future(
                    raw.in_thread(lambda _: context.run(carry_out, _read(inside, unit)))
                )
                try:
                    return await asyncio.shield(trip)
                finally:
                    await asyncio.wait([trip])  # the connection is used until its end

    @property
    def has_replica(self) -> bool:
        return self._replica is not None

    async def reader(self) -> PinnedReader:
        """Choose where to read something in several transactions, none of which shows less than the one before."""
        session = await self._replica_session()
        if session is None or self._replica is None:
            return PinnedReader(self._sessions)
        await session.close()
        return PinnedReader(self._replica.sessions)

    async def _session(self, may_be_stale: bool) -> AsyncSession:
        found = await self._replica_session() if may_be_stale else None
        return found or self._sessions()

    async def _replica_session(self) -> AsyncSession | None:
        """Return None where the primary must be read: no replica, one that is behind or away, or a reader who has written."""
        if self._replica is None or is_writer.get() or not await self._replica.may_be_read():
            return None
        return await self._replica.open()

    async def _written(self) -> int:
        async with self._sessions() as session:
            return int(await session.scalar(WRITTEN) or 0)

    def watch_commits(self, woken: asyncio.Event | None = None) -> CommitWatch:
        """Return what tells one loop when the database may have changed; setting ``woken`` ends the loop's pause."""
        return self._commits.watch(woken)

    def _commit_signal(self) -> CommitSignal:
        file = self.engine.url.database
        if self.engine.dialect.name == "postgresql":
            return CommitSignal(PostgresqlVersion(self.direct()).read, POSTGRESQL_TICK_S)
        if file and file != ":memory:":
            self._sqlite_version = SqliteVersion(file)
            return CommitSignal(self._sqlite_version.read, SQLITE_TICK_S)
        return CommitSignal(_unknown, SQLITE_TICK_S)

    async def is_up(self) -> bool:
        try:
            async with self.read() as session:
                await session.execute(text("SELECT 1"))
        except (DBAPIError, OSError):
            return False
        return True

    async def check(self) -> None:
        """Open a connection and use it.

        Raises:
            DatabaseUnavailable: With the reason in the driver's words, which never hold a password.
        """
        if (file := self.engine.url.database) and self.engine.dialect.name == "sqlite":
            await threads.FILES.run(_check_file, file)
            return
        try:
            async with self.read() as session:
                await session.execute(text("SELECT 1"))
        except (DBAPIError, OSError) as error:
            raise unavailable(error) from error

    async def empty_log(self) -> None:
        """Leave nothing in SQLite's write-ahead log of what was deleted; best effort, beside readers. PostgreSQL recycles its own."""
        if self.has_one_writer:
            await self._log.empty()

    async def _try_to_empty_log(self) -> bool:
        async with self._turn(is_urgent=False), self.engine.connect() as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            assert isinstance(raw, OneTripConnection)
            return await raw.in_thread(partial(checkpoint, patience_s=BUSY_TIMEOUT_S))

    def direct(self, is_durable: bool = True) -> DirectConnection:
        """Another connection to a PostgreSQL, for the hot path; closed with the others."""
        url = self.engine.url.render_as_string(hide_password=False)
        self._direct.append(DirectConnection(url, is_durable))
        return self._direct[-1]

    async def close(self) -> None:
        await self._commits.stop()
        for connection in self._direct:
            await connection.close()
        if self._sqlite_version is not None:
            self._sqlite_version.close()
        await self._urgent_writes.drain()
        await self._log.close()
        if self._at_once is not None:
            await self._in_thread(_nothing)  # waits for a trip whose caller was cancelled
            await self._at_once.close()
            self._at_once = None
        await self.engine.dispose()
        if self._replica is not None:
            await self._replica.engine.dispose()


class PinnedReader:
    """Reads from one place only: the primary, or the replica."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._sessions = sessions

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Open a transaction that is rolled back at its end."""
        async with self._sessions() as session:
            yield session


def unavailable(error: Exception, file: str | None = None) -> DatabaseUnavailable:
    """Return the error that tells an operator why the database cannot be used, in the driver's words. ``file`` is SQLite's."""
    if file is not None:
        if _is_out_of_room(error, file):
            return DatabaseUnavailable.without_room()
        return DatabaseUnavailable(_reason(error), hint=f"Check the file {file}.")
    return DatabaseUnavailable(_reason(error), hint=UNAVAILABLE_HINT)


def _is_out_of_room(error: Exception, file: str) -> bool:
    """Tell whether the disk is full. SQLite calls that an I/O error where it is its shared memory that finds no room."""
    failure = _failure_of(error)
    has_no_room = shutil.disk_usage(Path(file).parent).free < FULL_BYTES
    return failure == sqlite3.SQLITE_FULL or (failure == sqlite3.SQLITE_IOERR and has_no_room)


def _failure_of(error: Exception) -> int | None:
    """Return the kind of SQLite's error, such as SQLITE_IOERR; None for another database's."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code: int | None = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def after_commit(session: AsyncSession, tell: Callable[[], object]) -> None:
    """Have ``tell`` called on the event loop once the unit of this session is committed."""
    session.info.setdefault(TOLD, []).append(tell)


def _tell(session: AsyncSession) -> None:
    for tell in session.info.pop(TOLD, ()):
        tell()


def was_changed(result: Result[Any]) -> bool:
    """Tell whether a guarded UPDATE changed its row."""
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def among(
    session: AsyncSession,
    column: InstrumentedAttribute[str] | InstrumentedAttribute[str | None],
    values: Iterable[str],
) -> ColumnElement[bool]:
    """``column IN (values)`` with one parameter, however many values: no limit is met, and the statement stays the same."""
    if session.get_bind().dialect.name == "postgresql":
        return column == any_(cast(list(values), ARRAY(String)))
    listed = func.json_each(json.dumps(list(values))).table_valued("value")
    return column.in_(select(listed.c.value))


def among_rows(
    session: AsyncSession,
    columns: Sequence[InstrumentedAttribute[str]],
    rows: Iterable[Sequence[str]],
) -> ColumnElement[bool]:
    """``(columns) IN (rows)``, as ``among``. On SQLite the first column's index is used, on PostgreSQL any."""
    wanted = list(rows)
    if session.get_bind().dialect.name == "postgresql":
        sides = (list(side) for side in zip(*wanted, strict=True))
        return tuple_(*columns).in_(
            select(*(func.unnest(cast(side, ARRAY(String))) for side in sides))
        )
    each = func.json_each(json.dumps(wanted)).table_valued("value")
    parts = (func.json_extract(each.c.value, f"$[{at}]") for at in range(len(columns)))
    return among(session, columns[0], {row[0] for row in wanted}) & tuple_(*columns).in_(
        select(*parts)
    )


def _nothing(_connection: ResultConnection) -> None:
    """A trip that only waits for those before it."""


async def _read(connection: AsyncConnection, unit: Unit[T]) -> T:
    session = AsyncSession(connection, expire_on_commit=False)
    try:
        return await unit(session)
    finally:
        await session.close()


async def _unknown() -> None:
    """A version of what has none: every look counts as changed."""


def _check_file(file: str) -> None:
    """Open SQLite's file, without aiosqlite: the thread of its failed connection outlives the event loop."""
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        raise unavailable(error, file) from error


def _reason(error: Exception) -> str:
    """Return the first line of the driver's own message."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (str(cause).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def _switch_to_wal(cursor: Any) -> None:
    """The mode is the file's, and kept. Several that switch a new file at once are refused without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except (sqlite3.OperationalError, DBAPIError) as error:
            if _failure_of(error) in NO_ROOM or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _postgresql_engine(url: str) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=10,
        max_overflow=10,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=NETWORK,
    )


def _sqlite_engine(url: str) -> AsyncEngine:
    engine = create_async_engine(
        url,
        connect_args={
            "timeout": BUSY_TIMEOUT_S,
            "async_creator_fn": sqlite_connection.connect,
        },
        pool_size=SQLITE_CONNECTIONS,
        hide_parameters=True,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: _begin does
        cursor = connection.cursor()
        _switch_to_wal(cursor)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))

    return engine
