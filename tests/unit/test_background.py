"""Loops that must not die quietly."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator

import pytest

from guanaco_server.runtime.background import Background


@pytest.fixture
def terminations() -> Iterator[list[int]]:
    """SIGTERMs that this process got."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


async def test_a_loop_that_dies_takes_the_platform_down(
    terminations: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def loop() -> None:
        raise KeyError("unforeseen")

    background = Background("reconciler")
    with caplog.at_level(logging.CRITICAL):
        background.start(loop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert terminations == [signal.SIGTERM]
    assert "reconciler died" in caplog.text
    await background.stop()


async def test_a_loop_that_is_stopped_is_no_failure(terminations: list[int]) -> None:
    background = Background("reconciler")
    background.start(asyncio.sleep(3_600))
    await background.stop()
    assert terminations == []
