"""Ends a reply where its user has had enough: what was written until then is the reply."""

from __future__ import annotations

import asyncio
from typing import Self

STOPPED = "stopped"  # the finish reason of such a reply


class Stop:
    """Within, ``give`` ends the block at once, and the task goes on behind it. Outside it changes nothing."""

    __slots__ = ("_cancelling", "_is_given", "_task", "is_heeded")

    def __init__(self) -> None:
        self.is_heeded = False
        self._is_given = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def give(self) -> None:
        if self._task is not None and not self._is_given:
            self._is_given = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        task, self._task = self._task, None
        if not self._is_given or task is None or task.uncancel() > self._cancelling:
            return False
        self.is_heeded = kind is asyncio.CancelledError
        return self.is_heeded
