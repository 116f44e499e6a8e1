"""Tests which submissions are at capacity, also while a count is under way."""

from __future__ import annotations

import asyncio

from guanaco_server.routing.occupancy import Occupancy
from guanaco_server.scaling.replicas import EnginePlaces


class Counts:
    """The counts that the database would give; ``gate`` holds a count up."""

    def __init__(self, **capacities: int) -> None:
        self.turns: dict[str, int] = {}
        self.capacities = {name: EnginePlaces((name,), count) for name, count in capacities.items()}
        self.crowded: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.occupancy = Occupancy(self.count, self.read, lambda: self.crowded)

    async def count(self) -> dict[str, int]:
        found = dict(self.turns)
        await self.gate.wait()
        return found

    async def read(self) -> dict[str, EnginePlaces]:
        return self.capacities


async def test_as_many_turns_as_were_measured_are_full() -> None:
    counts = Counts(a=2, b=2)
    counts.turns = {"a": 2, "b": 1, "unmeasured": 1_000}
    await counts.occupancy.refresh()
    assert counts.occupancy.full == {"a"}


async def test_turns_count_as_often_as_their_replies_have_candidates() -> None:
    counts = Counts(a=24, b=24, c=8)
    counts.turns = {"a": 1, "b": 1}
    await counts.occupancy.refresh({"a": 16, "b": 12, "c": 16})
    assert counts.occupancy.full == {"a"}, "a second one has no room; c has room for its first"
    counts.turns["c"] = 1
    await counts.occupancy.refresh({"c": 16})
    assert counts.occupancy.full == {"c"}


async def test_what_turns_wait_for_here_is_full_at_once() -> None:
    counts = Counts(a=2)
    await counts.occupancy.refresh()
    counts.crowded.add("unmeasured")
    assert counts.occupancy.full == {"unmeasured"}
    counts.crowded.clear()
    assert not counts.occupancy.full


async def test_an_older_count_does_not_undo_a_newer_one() -> None:
    counts = Counts(a=1)
    counts.gate.clear()
    older = asyncio.create_task(counts.occupancy.refresh())
    await asyncio.sleep(0)
    counts.turns["a"] = 1
    newer = asyncio.create_task(counts.occupancy.refresh())
    await asyncio.sleep(0)
    counts.gate.set()
    await newer
    await older
    assert counts.occupancy.full == {"a"}


async def test_submission_uses_capacity_its_engine_siblings_leave() -> None:
    counts = Counts()
    counts.capacities = {"a": EnginePlaces(("a", "b"), 8)}
    counts.turns = {"a": 7}
    await counts.occupancy.refresh()
    assert not counts.occupancy.full
    counts.turns = {"a": 7, "b": 1}
    await counts.occupancy.refresh()
    assert counts.occupancy.full == {"a"}, "the other one still has its share"
    counts.turns = {"a": 4, "b": 4}
    await counts.occupancy.refresh()
    assert counts.occupancy.full == {"a", "b"}
