"""Whoever writes at the same time shares a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from guanaco_server.database.group_commit import GroupCommit


class Written:
    """The items that were written, batch by batch; each takes a turn of the loop or two, and ``bad`` items fail alone."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.orphans: list[str] = []
        self.fault: Exception | None = None

    async def write(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append([*items])
        await asyncio.sleep(0.001)
        if self.fault is not None:
            raise self.fault
        return [ValueError(item) if item == "bad" else item.upper() for item in items]


async def test_what_comes_while_one_is_on_its_way_goes_together() -> None:
    written = Written()
    group: GroupCommit[str, str] = GroupCommit(written.write, max_batch=3)
    first = asyncio.create_task(group.submit("a"))
    await asyncio.sleep(0)
    others = [asyncio.create_task(group.submit(item)) for item in "bcde"]
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "D", "E"]
    assert written.batches == [["a"], ["b", "c", "d"], ["e"]]
    await group.drain()
    assert await group.submit("f") == "F", "a writer that has ended begins again"


async def test_an_item_fails_alone_and_a_write_fails_for_all() -> None:
    written = Written()
    group: GroupCommit[str, str] = GroupCommit(written.write)
    found = await asyncio.gather(group.submit("a"), group.submit("bad"), return_exceptions=True)
    assert found[0] == "A"
    assert isinstance(found[1], ValueError)
    written.fault = OSError("gone")
    found = await asyncio.gather(group.submit("a"), group.submit("b"), return_exceptions=True)
    assert set(found) == {written.fault}


async def test_early_leaver_takes_it_back_and_late_leaver_leaves_orphans() -> None:
    written = Written()
    group: GroupCommit[str, str] = GroupCommit(written.write, written.orphans.append)
    late = asyncio.create_task(group.submit("late"))
    await asyncio.sleep(0)
    early = asyncio.create_task(group.submit("early"))
    await asyncio.sleep(0)
    assert written.batches == [["late"]]
    for task in (late, early):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await group.drain()
    assert (written.batches, written.orphans) == ([["late"]], ["LATE"])
