"""Loops that run as long as the platform. One that dies of an unforeseen error takes the platform down, loudly:
a platform that looks alive without its reconciler is worse than one that a supervisor starts again."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Background:
    """One loop; it begins with ``start`` and ends with ``stop``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(loop, name=self._name)
        self._task.add_done_callback(self._notice_end)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _notice_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s died, stopping the platform", self._name, exc_info=error)
            signal.raise_signal(signal.SIGTERM)
