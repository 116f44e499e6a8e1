"""Our connection to SQLite over aiosqlite: one trip to its thread for a statement, and no thread that a process waits for."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import aiosqlite
import pytest

from guanaco_server.database.sqlite.connection import ResultConnection, connect


async def test_a_statement_with_its_rows_is_one_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = 0
    execute = aiosqlite.Connection._execute

    async def counted(self: aiosqlite.Connection, *work: object) -> object:
        nonlocal trips
        trips += 1
        return await execute(self, *work)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    connection = await connect(str(tmp_path / "one.db"), isolation_level=None)
    async with connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE t (n INTEGER)")
        await cursor.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
        assert cursor.rowcount == 3
        await cursor.execute("SELECT n FROM t ORDER BY n")
        assert [name for name, *_ in cursor.description] == ["n"]
        assert await cursor.fetchone() == (1,)
        assert await cursor.fetchmany(1) == [(2,)]
        assert list(await cursor.fetchall()) == [(3,)]
    assert trips == 3

    def add(inside: ResultConnection) -> int:
        inside.execute("INSERT INTO t VALUES (4)")
        return int(inside.execute("SELECT count(*) FROM t").fetchall().rows[0][0])

    trips = 0
    assert await connection.in_thread(add) == 4
    assert trips == 1, "whatever is done in the thread"
    await connection.rollback()
    await connection.close()


async def test_what_a_statement_fails_with_is_raised(tmp_path: Path) -> None:
    connection = await connect(str(tmp_path / "one.db"), isolation_level=None)
    async with connection.cursor() as cursor:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await cursor.execute("SELECT n FROM t")
        await cursor.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)
    await connection.close()


async def test_its_thread_keeps_no_process_alive(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    connection = await connect(str(tmp_path / "one.db"))
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    await connection.close()
