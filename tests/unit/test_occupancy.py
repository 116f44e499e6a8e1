"""Open conversations against what a submission can hold, also while a count is under way."""

from __future__ import annotations

import asyncio

from guanaco_server.routing.occupancy import Occupancy


class Counts:
    """What the database would say; ``gate`` holds a count up."""

    def __init__(self, **capacities: int) -> None:
        self.open: dict[str, int] = {}
        self.capacities = capacities
        self.gate = asyncio.Event()
        self.gate.set()

    async def count(self) -> dict[str, int]:
        found = dict(self.open)
        await self.gate.wait()
        return found

    async def read(self) -> dict[str, int]:
        return self.capacities


async def occupied(**capacities: int) -> tuple[Counts, Occupancy]:
    counts = Counts(**capacities)
    occupancy = Occupancy(counts.count, counts.read)
    await occupancy.refresh()
    return counts, occupancy


async def test_what_is_taken_counts_at_once_and_what_was_never_measured_is_never_full() -> None:
    _, occupancy = await occupied(a=2)
    for _ in range(2):
        occupancy.take("a")
        occupancy.take("unmeasured")
    assert occupancy.full == {"a"}


async def test_a_stored_conversation_is_counted_once() -> None:
    counts, occupancy = await occupied(a=3)
    occupancy.take("a")
    counts.open["a"] = 1
    occupancy.settle("a")
    await occupancy.refresh()
    occupancy.take("a")
    assert not occupancy.full
    occupancy.take("a")
    assert occupancy.full == {"a"}


async def test_what_is_stored_while_a_count_is_under_way_is_not_forgotten() -> None:
    counts, occupancy = await occupied(a=1)
    counts.gate.clear()
    counting = asyncio.create_task(occupancy.refresh())
    await asyncio.sleep(0)
    occupancy.take("a")
    counts.open["a"] = 1
    occupancy.settle("a")
    counts.gate.set()
    await counting
    assert occupancy.full == {"a"}


async def test_an_older_count_does_not_undo_a_newer_one() -> None:
    counts, occupancy = await occupied(a=1)
    counts.gate.clear()
    older = asyncio.create_task(occupancy.refresh())
    await asyncio.sleep(0)
    occupancy.take("a")
    counts.open["a"] = 1
    occupancy.settle("a")
    newer = asyncio.create_task(occupancy.refresh())
    await asyncio.sleep(0)
    counts.gate.set()
    await newer
    await older
    assert occupancy.full == {"a"}
    counts.open.clear()
    await occupancy.refresh()
    assert not occupancy.full, "it has ended"
