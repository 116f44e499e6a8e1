import asyncio
import sqlite3
from pathlib import Path

import pytest

from guanaco_server.database.commits import CommitSignal, CommitWatch, SqliteVersion

FAR_S = 60.0  # a wait that must end early


@pytest.fixture
def file(tmp_path: Path) -> str:
    file = str(tmp_path / "some.db")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE ones (one INTEGER)")
    return file


def commit(file: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO ones VALUES (1)")


async def changes(*watches: CommitWatch) -> list[bool]:
    """Return what each watch says now, without waiting."""
    return [await watch.wait(0.0, 0.0) for watch in watches]


async def test_each_watch_hears_of_a_commit_once(file: str) -> None:
    version = SqliteVersion(file)
    signal = CommitSignal(version.read, FAR_S)
    first, second = signal.watch(), signal.watch()
    assert await changes(first, second) == [True, True]  # nothing was looked at before
    await signal.look()
    await changes(first, second)
    await signal.look()
    assert await changes(first, second) == [False, False]
    commit(file)
    await signal.look()
    assert await changes(first, second) == [True, True]
    assert await changes(first, second) == [False, False]
    await signal.stop()
    version.close()


async def test_a_commit_ends_the_wait(file: str) -> None:
    version = SqliteVersion(file)
    signal = CommitSignal(version.read, 0.01)
    watch = signal.watch()
    await watch.wait(0.0)
    while await watch.wait(0.0, 0.05):
        pass
    commit(file)
    assert await watch.wait(0.0, FAR_S)
    await signal.stop()
    version.close()


async def test_a_wake_ends_the_pause_and_the_wait() -> None:
    signal = CommitSignal(_same, FAR_S)
    woken = asyncio.Event()
    watch = signal.watch(woken)
    woken.set()
    assert await watch.wait(FAR_S)
    await changes(watch)
    asyncio.get_running_loop().call_soon(watch.wake)
    assert await watch.wait(0.0, FAR_S)
    assert await changes(watch) == [False]
    await signal.stop()


async def test_a_look_that_failed_is_made_again() -> None:
    signal = CommitSignal(_same, FAR_S)
    watch = signal.watch()
    await watch.wait(0.0)
    await changes(watch)
    watch.reset()
    assert await changes(watch) == [True]
    await signal.stop()


async def test_what_cannot_be_read_counts_as_changed(tmp_path: Path) -> None:
    version = SqliteVersion(str(tmp_path / "missing" / "some.db"))
    signal = CommitSignal(version.read, FAR_S)
    watch = signal.watch()
    for _ in range(3):
        await signal.look()
        assert await changes(watch) == [True]
    await signal.stop()


async def _same() -> int:
    return 1
