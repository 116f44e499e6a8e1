"""Limits how long the current task may wait, as asyncio.timeout does, at a third of its cost: each reply pays it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self


class Deadline:
    """Within, the task is ended with TimeoutError at ``at`` on the loop's clock, or as late as ``move`` or ``extension`` have put it."""

    __slots__ = ("_at", "_cancelling", "_extension", "_is_over", "_loop", "_task", "_timer")

    def __init__(self, at: float, extension: Callable[[], float] | None = None) -> None:
        """``extension`` is asked when the time is over, and may give a later one."""
        self._at = at
        self._extension = extension
        self._is_over = False

    def move(self, at: float) -> None:
        """Move the deadline to a later time. The timer learns of it when it goes off."""
        self._at = at

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(self._at, self._expire)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if not self._is_over or self._task.uncancel() > self._cancelling:
            return
        if kind is asyncio.CancelledError:
            raise TimeoutError

    def _expire(self) -> None:
        if self._extension is not None:
            self._at = max(self._at, self._extension())
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._expire)
        else:
            self._is_over = True
            self._task.cancel()
