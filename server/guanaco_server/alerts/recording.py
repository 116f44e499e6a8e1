"""Writes what this process has counted into the database, every few seconds and when it stops.

A process that is killed loses the counts of its last WRITE_S. One whose commit was not heard of may count twice.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from guanaco_server.alerts import queries
from guanaco_server.database.database import Database
from guanaco_server.observability.tally import ServiceTally
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

WRITE_S = 15.0
PERIOD_S = 300

logger = logging.getLogger(__name__)


def period_of(at: datetime) -> datetime:
    """Return the beginning of the five minutes in which a moment lies."""
    return at.replace(minute=at.minute - at.minute % (PERIOD_S // 60), second=0, microsecond=0)


class ServiceRecorder:
    def __init__(self, database: Database, clock: Clock, tally: ServiceTally) -> None:
        self._database = database
        self._clock = clock
        self._tally = tally
        self._background = Background("service counts")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()
        await self._try_to_write()

    async def write(self) -> None:
        """Add what was counted since the last call to the counts of the present period."""
        counts = self._tally.take()
        if not counts:
            return
        try:
            await self._database.write_unit(
                lambda session: queries.add_counts(session, period_of(self._clock.now()), counts)
            )
        except BaseException:
            self._tally.put_back(counts)
            raise

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            await self._try_to_write()

    async def _try_to_write(self) -> None:
        try:
            await self.write()
        except (DBAPIError, OSError) as error:
            logger.warning("service counts not written; they are kept for the next try: %s", error)
