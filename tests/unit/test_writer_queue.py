"""Tests who writes next, where a database has one writer at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database
from guanaco_server.database.sqlite.writer_queue import MOST_IN_A_ROW, WriterQueue


class Writers:
    """Notes who wrote, in order. The first one writes until ``end_first``."""

    def __init__(self, patience_s: float = 60) -> None:
        self.queue = WriterQueue(patience_s)
        self.wrote: list[str] = []
        self.end_first = asyncio.Event()

    async def write(self, name: str, *, is_urgent: bool = False) -> None:
        async with self.queue.turn(is_urgent=is_urgent):
            self.wrote.append(name)
            await self.end_first.wait()

    async def begin(self, name: str, *, is_urgent: bool = False) -> asyncio.Task[None]:
        task = asyncio.create_task(self.write(name, is_urgent=is_urgent))
        await asyncio.sleep(0)
        return task


async def test_the_first_who_came_writes_first() -> None:
    writers = Writers()
    tasks = [await writers.begin(name) for name in "abcde"]
    writers.end_first.set()
    await asyncio.gather(*tasks)
    assert writers.wrote == list("abcde")


async def test_an_urgent_writer_waits_for_one_of_a_flood_only() -> None:
    writers = Writers()
    flood = [await writers.begin(f"other {number}") for number in range(100)]
    chat = await writers.begin("chat", is_urgent=True)
    writers.end_first.set()
    await asyncio.gather(chat, *flood)
    assert writers.wrote.index("chat") == 1


async def test_a_flood_of_urgent_writers_lets_the_others_through() -> None:
    writers = Writers()
    tasks = [await writers.begin(f"chat {number}", is_urgent=True) for number in range(20)]
    tasks += [await writers.begin(name) for name in ("a", "b")]
    writers.end_first.set()
    await asyncio.gather(*tasks)
    found = [writers.wrote.index(name) for name in ("a", "b")]
    assert found[0] <= MOST_IN_A_ROW + 1
    assert found[1] <= 2 * MOST_IN_A_ROW + 2


async def test_who_leaves_holds_up_nobody() -> None:
    writers = Writers()
    tasks = [await writers.begin(name) for name in "abcd"]
    tasks[1].cancel()
    writers.end_first.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert writers.wrote == list("acd")


async def test_who_leaves_when_the_turn_came_passes_it_on() -> None:
    writers = Writers()
    turn = writers.queue.turn(is_urgent=False)
    await turn.__aenter__()
    writers.end_first.set()
    waiting, last = await writers.begin("leaves"), await writers.begin("last")
    await turn.__aexit__(None, None, None)
    waiting.cancel()
    await asyncio.gather(waiting, last, return_exceptions=True)
    assert writers.wrote == ["last"]


async def test_missing_turn_is_a_database_error() -> None:
    writers = Writers(patience_s=0.01)
    writers.end_first.set()
    async with writers.queue.turn(is_urgent=False):
        with pytest.raises(OperationalError, match="database is locked"):
            await writers.write("late")
    await writers.write("next")
    assert writers.wrote == ["next"]


async def test_sqlite_lets_an_urgent_writer_in_before_a_flood(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/guanaco.db")
    async with database.write() as session:
        await session.execute(text("CREATE TABLE written (name TEXT)"))

    async def write(name: str, *, is_urgent: bool = False) -> None:
        async def insert(session: AsyncSession) -> None:
            await session.execute(text("INSERT INTO written VALUES (:name)"), {"name": name})

        await database.write_unit(insert, is_urgent=is_urgent)

    flood = [asyncio.create_task(write("other")) for _ in range(40)]
    await asyncio.sleep(0)
    await write("chat", is_urgent=True)
    await asyncio.gather(*flood)
    async with database.read() as session:
        names = list(await session.scalars(text("SELECT name FROM written ORDER BY rowid")))
    await database.close()
    assert names.index("chat") == 1


async def test_the_task_whose_turn_has_come_holds_the_lock() -> None:
    writers = Writers()
    held: list[bool] = []

    async def ask() -> None:
        async with writers.queue.turn(is_urgent=False):
            held.append(writers.queue.is_held_here)

    first = await writers.begin("first")
    second = asyncio.create_task(ask())
    await asyncio.sleep(0)
    assert not writers.queue.is_held_here
    writers.end_first.set()
    await asyncio.gather(first, second)
    assert held == [True]
