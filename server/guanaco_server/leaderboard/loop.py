"""The loop behind the leaderboard: counts what is new, then ranks. One process at a time runs it."""

from __future__ import annotations

import logging
import time

from sqlalchemy.exc import DBAPIError

from guanaco_server.database.commits import CommitWatch
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.runtime.background import Background

IDLE_S = 0.5
COUNTING_S = 1.5  # before the counted is ranked: the leaderboard follows within 5 s
WINDOWS_S = 30.0  # until a changed window is noticed without new ratings

logger = logging.getLogger(__name__)


class ScoreLoop:
    def __init__(
        self, counter: ScoreCounter, standings: StandingsPublisher, commits: CommitWatch
    ) -> None:
        self._counter = counter
        self._standings = standings
        self._commits = commits
        self._counted_at = float("-inf")
        self._background = Background("scores")

    async def start(self) -> None:
        self._standings.reset()
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def run_once(self) -> bool:
        """Count for a while, then rank. Return whether more waits to be counted."""
        has_more = await self._count()
        await self._standings.publish()
        return has_more

    async def _count(self) -> bool:
        began = time.monotonic()
        if began - self._counted_at < WINDOWS_S and not await self._counter.has_work():
            return False
        while time.monotonic() - began < COUNTING_S:
            batch = await self._counter.count_batch()
            self._standings.follow(batch)
            if batch.is_all:
                self._counted_at = time.monotonic()
                return False
        return True

    async def _run(self) -> None:
        while True:
            try:
                has_more = await self.run_once()
            except (DBAPIError, OSError) as error:
                logger.warning("leaderboard not updated; trying again: %s", error)
                self._standings.reset()
                self._commits.reset()
                has_more = False
            if not has_more:
                await self._commits.wait(IDLE_S, WINDOWS_S)
