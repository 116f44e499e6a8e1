"""The loop behind the leaderboard: counts what is new, then ranks. One process at a time does this, as its duty."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.exc import DBAPIError

from guanaco_server.leaderboard.books import Books
from guanaco_server.leaderboard.standings import StandingsKeeper
from guanaco_server.runtime.background import Background

IDLE_S = 0.5
SETTLE_S = 1.5  # of counting, before what was counted is ranked: the leaderboard follows within 5 s
WINDOWS_S = 30.0  # a window that was changed is noticed within this time, also without new ratings

logger = logging.getLogger(__name__)


class Scorekeeper:
    def __init__(self, books: Books, standings: StandingsKeeper) -> None:
        self._books = books
        self._standings = standings
        self._settled_at = float("-inf")
        self._background = Background("scorekeeper")

    async def start(self) -> None:
        self._standings.reset()
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def keep(self) -> bool:
        """Count what there is, for a while, and rank; True when there is more to count."""
        has_more = await self._settle()
        await self._standings.publish()
        return has_more

    async def _settle(self) -> bool:
        began = time.monotonic()
        if began - self._settled_at < WINDOWS_S and not await self._books.has_work():
            return False
        while time.monotonic() - began < SETTLE_S:
            settled = await self._books.settle()
            self._standings.follow(settled)
            if settled.is_all:
                self._settled_at = time.monotonic()
                return False
        return True

    async def _run(self) -> None:
        while True:
            try:
                has_more = await self.keep()
            except (DBAPIError, OSError) as error:
                logger.warning("the leaderboard stays as it was: %s", error)
                self._standings.reset()
                has_more = False
            if not has_more:
                await asyncio.sleep(IDLE_S)
