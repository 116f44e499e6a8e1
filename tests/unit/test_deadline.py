"""A limit to how long a task may wait."""

from __future__ import annotations

import asyncio

import pytest

from guanaco_server.chat.gateway.deadline import Deadline
from tests.fixtures.clocks import after


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_wait_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError), Deadline(now() + 0.01):
        await asyncio.Event().wait()
    await asyncio.sleep(0)  # nothing is left of the cancellation


async def test_one_that_is_over_in_time_is_not_disturbed() -> None:
    with Deadline(now() + 60):
        pass
    await after(120, asyncio.sleep(0))  # a look of the loop at what is due
    await asyncio.sleep(0)


async def test_moved_it_comes_later_and_not_before() -> None:
    began = now()

    async def wait() -> None:
        with Deadline(began + 0.01) as deadline:
            deadline.move(began + 0.05)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()
    assert now() >= began + 0.05


async def test_outside_cancellation_wins_when_the_deadline_passes_too() -> None:
    async def wait() -> None:
        with Deadline(now() + 0.01):
            try:
                await asyncio.Event().wait()
            finally:
                task.cancel()

    task = asyncio.create_task(wait())
    with pytest.raises(asyncio.CancelledError):
        await task
