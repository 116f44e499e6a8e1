"""Work that is done again and again, by one process at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError

from guanaco_server.runtime.background import Background

PAUSE_S = 60.0

logger = logging.getLogger(__name__)


class Duty:
    """``do`` returns how much it did, and is called again at once until that is nothing. What the database refuses is tried again after the pause."""

    def __init__(self, name: str, do: Callable[[], Awaitable[int]]) -> None:
        self._name = name
        self._do = do
        self._background = Background(name)

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            try:
                done = await self._do()
            except (DBAPIError, OSError) as error:
                reason = str(getattr(error, "orig", error)).partition("\n")[0]
                logger.warning("%s failed, trying again in %.0f s: %s", self._name, PAUSE_S, reason)
                done = 0
            if not done:
                await asyncio.sleep(PAUSE_S)
