"""A confined process that is ended: the platform does not wait for it on its event loop, however busy the threads are."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Awaitable, Callable
from typing import IO

import pytest

from guanaco_server.artifacts.checking.process import _CheckProcess
from guanaco_server.runtime import threads
from guanaco_server.tokenization.process import TokenizerProcess


class SlowToEnd:
    """A child that notes in which thread somebody waited for its end."""

    pid = 2**22 + 1  # of no process

    def __init__(self) -> None:
        self._ends = [os.pipe(), os.pipe()]
        self.stdin: IO[bytes] = os.fdopen(self._ends[0][1], "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(self._ends[1][0], "rb", buffering=0)
        self.waited_in: threading.Thread | None = None

    def poll(self) -> int | None:
        return None

    def wait(self) -> int:
        self.waited_in = threading.current_thread()
        return 0

    def kill(self) -> None:
        """It takes a while."""

    def close(self) -> None:
        os.close(self._ends[0][0])
        os.close(self._ends[1][1])


async def _tokenizer(child: SlowToEnd) -> Callable[[], None]:
    return (await TokenizerProcess.start(lambda module: child)).close


async def _check(child: SlowToEnd) -> Callable[[], None]:
    return (await _CheckProcess.start(lambda module: child)).end


@pytest.mark.parametrize("start", [_tokenizer, _check])
async def test_no_end_is_waited_for_on_the_event_loop(
    start: Callable[[SlowToEnd], Awaitable[Callable[[], None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, release, pool = SlowToEnd(), threading.Event(), threads.Threads("busy", 1)
    monkeypatch.setattr(threads, "PROCESSES", pool)
    end = await start(child)
    pool.begin(release.wait)
    end()
    del end  # which holds the process
    gc.collect()
    waited_at_once = child.waited_in
    release.set()
    assert waited_at_once is None
    await pool.run(gc.collect)
    assert child.waited_in is not None
    assert child.waited_in is not threading.main_thread()
    child.close()
