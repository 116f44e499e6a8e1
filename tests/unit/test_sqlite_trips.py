"""Transactions that are one trip to SQLite's thread: those that wait share one, and each fails for itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database import database as database_module
from guanaco_server.database.database import Database, after_commit
from guanaco_server.database.sqlite.connection import ResultConnection

NAMES = "SELECT name FROM written ORDER BY rowid"
INSERT = "INSERT INTO written VALUES (:name, :other)"


class File:
    """A database with a table of names. One may name another, which must be there when the transaction ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(f"sqlite+aiosqlite:///{path}")

    async def create(self) -> None:
        other = "other TEXT REFERENCES written (name) DEFERRABLE INITIALLY DEFERRED"
        async with self.database.write() as session:
            await session.execute(text(f"CREATE TABLE written (name TEXT UNIQUE, {other})"))

    def committed(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [name for (name,) in connection.execute(NAMES)]

    async def write(self, name: str, other: str | None = None) -> tuple[list[str], list[str]]:
        """Write a name in plain SQL; what the transaction sees then, and what everybody else does."""

        def insert(inside: ResultConnection) -> tuple[list[str], list[str]]:
            inside.execute(INSERT, {"name": name, "other": other})
            seen = [name for (name,) in inside.execute(NAMES).fetchall().rows]
            return seen, self.committed()

        return await self.database.write_at_once(insert)

    async def write_unit(self, name: str, *, is_urgent: bool = True) -> str:
        async def insert(session: AsyncSession) -> str:
            await session.execute(text(INSERT), {"name": name, "other": None})
            return name

        return await self.database.write_unit(insert, is_urgent=is_urgent)

    async def together(self, *writes: Awaitable[object]) -> list[object]:
        """Have all of them wait for the write lock, then see what becomes of each."""
        async with self.database.write():
            tasks = [asyncio.ensure_future(write) for write in writes]
            await _all_wait()
        return await asyncio.gather(*tasks, return_exceptions=True)


async def _all_wait() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[File]:
    file = File(tmp_path / "guanaco.db")
    await file.create()
    yield file
    await file.database.close()


async def test_urgent_writes_that_wait_share_one_commit(file: File) -> None:
    results = await file.together(file.write("a"), file.write_unit("b"), file.write("c"))
    assert results == [(["a"], []), "b", (["a", "b", "c"], [])]
    assert file.committed() == ["a", "b", "c"]


async def test_an_urgent_write_that_comes_during_others_is_next(file: File) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    async def hold(session: AsyncSession) -> None:
        await session.execute(text(INSERT), {"name": "early chat", "other": None})
        has_begun.set()
        may_end.wait(10)

    async with file.database.write():
        early = asyncio.ensure_future(file.database.write_unit(hold, is_urgent=True))
        flood = [file.write_unit(f"other {number}", is_urgent=False) for number in range(3)]
        others = [asyncio.ensure_future(write) for write in flood]
        await _all_wait()
    assert await asyncio.to_thread(has_begun.wait, 10)
    late = asyncio.ensure_future(file.write("late chat"))
    await _all_wait()
    may_end.set()
    await asyncio.gather(early, late, *others)
    assert file.committed()[:2] == ["early chat", "late chat"]


async def test_a_write_that_fails_fails_alone(file: File) -> None:
    again, unit_again = file.write("a"), file.write_unit("a")
    results = await file.together(file.write("a"), again, unit_again, file.write("b"))
    assert [type(result) for result in results] == [tuple, IntegrityError, IntegrityError, tuple]
    assert file.committed() == ["a", "b"]


async def test_all_fail_if_their_commit_fails(file: File) -> None:
    results = await file.together(file.write("a"), file.write("b", other="nobody"))
    assert [type(result) for result in results] == [IntegrityError, IntegrityError]
    assert file.committed() == []
    await file.write("c")
    assert file.committed() == ["c"]


async def test_who_leaves_before_the_turn_writes_nothing(file: File) -> None:
    async with file.database.write():
        tasks = [asyncio.ensure_future(file.write(name)) for name in "abc"]
        await _all_wait()
        tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert file.committed() == ["a", "c"]


async def test_who_leaves_during_the_write_takes_nobody_along(file: File) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def block(inside: ResultConnection) -> None:
        has_begun.set()
        may_end.wait()

    blocking = asyncio.ensure_future(file.database.write_at_once(block))
    await asyncio.to_thread(has_begun.wait)
    leaving, staying = (asyncio.ensure_future(file.write(name)) for name in "ab")
    await _all_wait()
    blocking.cancel()
    leaving.cancel()
    may_end.set()
    assert await staying == (["b"], [])
    assert blocking.cancelled()
    assert file.committed() == ["b"]


async def test_a_unit_whose_caller_left_is_whole_after_the_close(file: File) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    async def block(session: AsyncSession) -> None:
        await session.execute(text(INSERT), {"name": "a", "other": None})
        has_begun.set()
        may_end.wait()
        await session.execute(text(INSERT), {"name": "b", "other": None})

    leaving = asyncio.ensure_future(file.database.write_unit(block))
    await asyncio.to_thread(has_begun.wait)
    leaving.cancel()
    await _all_wait()
    closing_all = asyncio.ensure_future(file.database.close())
    await _all_wait()
    may_end.set()
    await closing_all
    assert leaving.cancelled()
    assert file.committed() == ["a", "b"]


@pytest.mark.parametrize("is_urgent", [False, True])
async def test_a_unit_that_waits_for_something_else_is_refused(file: File, is_urgent: bool) -> None:
    async def wait(session: AsyncSession) -> None:
        await session.execute(text(INSERT), {"name": "a", "other": None})
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="its session only"):
        await file.database.write_unit(wait, is_urgent=is_urgent)
    assert await file.write_unit("b", is_urgent=is_urgent) == "b"
    assert file.committed() == ["b"]


async def test_what_follows_a_commit_is_done_on_the_event_loop(file: File) -> None:
    told: list[tuple[list[str], threading.Thread]] = []

    async def insert(session: AsyncSession, name: str) -> None:
        await session.execute(text(INSERT), {"name": name, "other": None})
        after_commit(session, lambda: told.append((file.committed(), threading.current_thread())))

    await file.database.write_unit(lambda session: insert(session, "a"))
    with pytest.raises(IntegrityError):
        await file.database.write_unit(lambda session: insert(session, "a"))
    async with file.database.write() as session:
        await insert(session, "b")
    here = threading.current_thread()
    assert told == [(["a"], here), (["a", "b"], here)]


@pytest.mark.parametrize("is_urgent", [False, True])
async def test_what_follows_a_commit_is_done_without_the_caller(
    file: File, is_urgent: bool
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    told: list[str] = []

    async def block(session: AsyncSession) -> None:
        after_commit(session, lambda: told.append("a"))
        has_begun.set()
        may_end.wait()

    leaving = asyncio.ensure_future(file.database.write_unit(block, is_urgent=is_urgent))
    await asyncio.to_thread(has_begun.wait)
    leaving.cancel()
    may_end.set()
    await file.write_unit("next")
    assert leaving.cancelled()
    assert told == ["a"]


async def test_a_unit_has_savepoints_of_its_own(file: File) -> None:
    async def insert(session: AsyncSession) -> None:
        for name in ("a", "a", "b"):
            try:
                async with session.begin_nested():
                    await session.execute(text(INSERT), {"name": name, "other": None})
            except IntegrityError:
                pass

    await file.database.write_unit(insert)
    assert file.committed() == ["a", "b"]


@pytest.mark.parametrize("write", [File.write, File.write_unit])
async def test_lock_not_had_in_time_is_a_database_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[File, str], Awaitable[Any]]
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.01)
    file = File(tmp_path / "guanaco.db")
    await file.create()
    with closing(sqlite3.connect(file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="database is locked"):
            await write(file, "a")
    await write(file, "b")
    assert file.committed() == ["b"]
    await file.database.close()


async def test_only_a_durable_write_waits_for_the_disk(file: File) -> None:
    def synchronous(inside: ResultConnection) -> int:
        return int(inside.execute("PRAGMA synchronous").fetchall().rows[0][0])

    lease = file.database.write_at_once(synchronous, is_durable=False)
    reply = file.database.write_at_once(synchronous)
    assert await lease == 1, "NORMAL"
    assert await reply == 2, "FULL"
    lease = file.database.write_at_once(synchronous, is_durable=False)
    assert await file.together(lease, file.database.write_at_once(synchronous)) == [2, 2]


async def test_a_read_unit_shows_one_state_in_a_thread(file: File) -> None:
    await file.write("a")

    async def read(session: AsyncSession) -> tuple[list[str], list[str], int]:
        before = list(await session.scalars(text(NAMES)))
        with closing(sqlite3.connect(file.path)) as other, other:
            other.execute(INSERT, {"name": "b", "other": None})
        return before, list(await session.scalars(text(NAMES))), threading.get_ident()

    before, after, thread = await file.database.read_unit(read)
    assert (before, after) == (["a"], ["a"])
    assert thread != threading.get_ident()
    assert file.committed() == ["a", "b"]


async def test_a_read_unit_whose_caller_leaves_leaves_its_connection_clean(file: File) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def read(session: AsyncSession) -> None:
        await session.execute(text(NAMES))
        begun.set()
        go_on.wait()
        await session.execute(text(NAMES))

    async def count(session: AsyncSession) -> int:
        return len((await session.scalars(text(NAMES))).all())

    reading = asyncio.create_task(file.database.read_unit(read))
    await asyncio.to_thread(begun.wait)
    reading.cancel()
    await asyncio.sleep(0)
    assert not reading.done(), "it leaves when nobody uses the connection any more"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await file.write("a")
    assert await file.database.read_unit(count) == 1
