"""Reads the gauges that are facts of the database: how long the queue is, what is served, who lives.

Unchanged tables are read again only after a while, unless time alone changes it: a queue's age, a worker's life.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

INTERVAL_S = 10.0  # half of a usual scrape's interval
REST_S = 60.0  # the gauges' own time is alerted on after 120 s

# Waits for the first number of seconds, then for a commit, the second number in all.
Wait = Callable[[float, float], Awaitable[object]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GaugeQueries:
    """The counts by status and phase. A status or phase that nothing has is zero, not absent."""

    submissions: Callable[[], Awaitable[dict[str, int]]]
    oldest_queued: Callable[[], Awaitable[datetime | None]]
    deployments: Callable[[], Awaitable[dict[str, int]]]
    unserved: Callable[[], Awaitable[dict[str, int]]]
    workers: Callable[[], Awaitable[int]]


class DatabaseGauges:
    def __init__(self, metrics: Metrics, clock: Clock, counts: GaugeQueries, wait: Wait) -> None:
        self._metrics = metrics
        self._clock = clock
        self._counts = counts
        self._wait = wait
        self._has_aging = True
        self._background = Background("database gauges")

    async def start(self) -> None:
        await self.take()
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def take(self) -> None:
        counts, now = self._counts, self._clock.now()
        oldest = await counts.oldest_queued()
        workers = await counts.workers()
        self._metrics.note_database_gauges(
            await counts.submissions(),
            max(0.0, (now - oldest).total_seconds()) if oldest else 0.0,
            await counts.deployments(),
            await counts.unserved(),
            workers,
            now.timestamp(),
        )
        self._has_aging = oldest is not None or workers > 1

    async def _run(self) -> None:
        while True:
            await self._wait(INTERVAL_S, INTERVAL_S if self._has_aging else REST_S)
            try:
                await self.take()
            except (DBAPIError, OSError) as error:
                logger.warning("the gauges stay as they were: %s", error)
                self._has_aging = True
