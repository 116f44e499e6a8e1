from __future__ import annotations

import asyncio

import pytest

from guanaco_server.chat.gateway.deadline import Deadline
from guanaco_server.chat.gateway.stopping import Stop


async def test_what_is_stopped_ends_and_its_task_goes_on() -> None:
    stop = Stop()
    asyncio.get_running_loop().call_soon(stop.give)
    with stop:
        await asyncio.Event().wait()
    assert stop.is_heeded
    await asyncio.sleep(0)  # the task itself is not cancelled


async def test_a_stop_outside_its_block_changes_nothing() -> None:
    stop = Stop()
    stop.give()
    with stop:
        await asyncio.sleep(0)
    stop.give()
    await asyncio.sleep(0)
    assert not stop.is_heeded


async def test_a_task_that_is_cancelled_too_ends() -> None:
    stop = Stop()

    async def write() -> None:
        with stop:
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    stop.give()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_within_is_still_told() -> None:
    stop, loop = Stop(), asyncio.get_running_loop()
    with pytest.raises(TimeoutError), stop, Deadline(loop.time()):
        await asyncio.Event().wait()
    assert not stop.is_heeded
