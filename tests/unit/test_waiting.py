"""A wait ends when it is cancelled, whatever else happens in that moment."""

from __future__ import annotations

import asyncio

import pytest

from guanaco_server.clusters.kubernetes.api.informers import ChangeSignal
from guanaco_server.runtime.waiting import happens


@pytest.mark.parametrize("steps", range(4))
async def test_cancellation_at_the_moment_of_the_event_is_kept(steps: int) -> None:
    changed = ChangeSignal()

    async def watch_for_ever() -> None:
        while True:
            await changed.wait(60)

    watching = asyncio.create_task(watch_for_ever())
    for _ in range(10):  # until it waits
        await asyncio.sleep(0)
    changed.notify()
    for _ in range(steps):
        await asyncio.sleep(0)
    watching.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert watching.cancelled()


async def test_what_does_not_happen_in_time_is_told() -> None:
    event = asyncio.Event()
    assert not await happens(0.01, event)
    event.set()
    assert await happens(0.01, event)
