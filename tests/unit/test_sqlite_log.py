"""SQLite's write-ahead log is emptied after an erasure, and no writer waits meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database
from guanaco_server.database.sqlite.log import LogEmptying

WRITERS_S = 20  # the old way took 30 s: all of the reader's


async def insert(session: AsyncSession) -> None:
    await session.execute(text("INSERT INTO words VALUES ('secret')"))


async def test_writers_go_on_while_a_reader_keeps_the_log(tmp_path: Path) -> None:
    file = tmp_path / "guanaco.db"
    log = file.with_name("guanaco.db-wal")
    database = Database(f"sqlite+aiosqlite:///{file}")
    async with database.write() as session:
        await session.execute(text("CREATE TABLE words (word TEXT)"))
    async with database.read() as session:
        await session.execute(text("SELECT * FROM words"))
        await database.write_unit(insert)
        emptying = asyncio.create_task(database.empty_log())
        async with asyncio.timeout(WRITERS_S):
            for _ in range(3):
                await database.write_unit(insert)
                async with database.write() as writer:
                    await insert(writer)
        assert not emptying.done()
    await emptying
    assert log.stat().st_size == 0
    await database.close()


async def test_erasures_at_once_share_the_work() -> None:
    attempts = 0

    async def attempt() -> bool:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0)
        return True

    emptying = LogEmptying(attempt)
    assert all(await asyncio.gather(*(emptying.empty() for _ in range(50))))
    assert attempts == 1


async def test_a_stop_waits_for_no_reader() -> None:
    async def attempt() -> bool:
        return False

    emptying = LogEmptying(attempt)
    asked = asyncio.create_task(emptying.empty())
    await asyncio.sleep(0)
    await emptying.close()
    assert not await asked
