"""Reads the gauges of what serves: the model servers' own figures, GPUs, and money. One process does so for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from guanaco_server.observability.by_submission import ServerStatistics, Spend
from guanaco_server.observability.database_gauges import Wait
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.background import Background

INTERVAL_S = 15.0  # a usual scrape's
REST_S = 60.0  # while nothing is served, and nothing was committed
SPENDING_EVERY = 4  # rounds: it reads the month's intervals
REVIEW_S = 300.0  # what was torn down is scraped on for as long, or twice as long

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetSpending:
    """The GPUs that are held and their cost an hour, by type of GPU, and the cost by submission."""

    gpus: Mapping[str, int]
    per_hour: Mapping[str, float]
    submissions: Mapping[str, Spend]


@dataclass(frozen=True)
class FleetReaders:
    """The source of each figure. ``gpus_wanted`` is by type, ``pools`` says how many servers wait in each, ``idle`` counts by kind those that nobody uses."""

    servers: Callable[[], Awaitable[Mapping[str, ServerStatistics]]]
    gpus_wanted: Callable[[], Awaitable[Mapping[str, int]]]
    pools: Callable[[], Awaitable[Mapping[str, int]]]
    idle: Callable[[], Awaitable[Mapping[str, int]]]
    spending: Callable[[], Awaitable[FleetSpending]]


NOTHING = FleetSpending({}, {}, {})


class FleetGauges:
    def __init__(
        self,
        metrics: Metrics,
        readers: FleetReaders,
        is_leader: Callable[[], bool],
        wait: Wait,
    ) -> None:
        """A process that does not lead says nothing: the leading one does."""
        self._metrics = metrics
        self._readers = readers
        self._is_leader = is_leader
        self._wait = wait
        self._has_work = True
        self._rounds = 0
        self._background = Background("fleet gauges")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()
        self._clear()

    async def take(self) -> None:
        self._has_work = True  # it may lead at any time
        if not self._is_leader():
            self._clear()
            return
        servers, wanted = await self._readers.servers(), await self._readers.gpus_wanted()
        self._metrics.submissions.note_servers(servers)
        self._metrics.note_gpus_wanted(wanted)
        pools = await self._readers.pools()
        self._metrics.note_pools(pools)
        idle = await self._readers.idle()
        self._metrics.note_idle_servers(idle)
        self._has_work = bool(servers or wanted or pools or any(idle.values()))
        if self._rounds % SPENDING_EVERY == 0 or not self._has_work:
            self._note(await self._readers.spending())
        self._rounds += 1

    def _clear(self) -> None:
        self._rounds = 0
        self._metrics.submissions.note_servers({})
        self._metrics.note_gpus_wanted({})
        self._metrics.note_pools({})
        self._metrics.note_idle_servers({})
        self._note(NOTHING)

    def _note(self, found: FleetSpending) -> None:
        self._metrics.note_gpus_held(found.gpus, found.per_hour)
        self._metrics.submissions.note_spending(found.submissions)

    async def _run(self) -> None:
        while True:
            try:
                await self.take()
            except (DBAPIError, OSError) as error:
                logger.warning("the gauges of the model servers stay as they were: %s", error)
            await self._wait(INTERVAL_S, INTERVAL_S if self._has_work else REST_S)


class SubmissionReview:
    """Decides now and then which submissions have series of their own in this process. ``is_served`` says whether one has a server."""

    def __init__(self, metrics: Metrics, is_served: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._is_served = is_served
        self._background = Background("series of submissions")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REVIEW_S)
            self._metrics.submissions.review(self._is_served)
