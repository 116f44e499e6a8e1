"""The loop that makes copies: at once when a rating was given in this process, within half a second otherwise."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import DBAPIError

from guanaco_server.feedback.copies import BATCH, CopyService
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

POLL_S = 0.5
PAUSE_S = 5.0  # after the database did not answer

logger = logging.getLogger(__name__)


class Copying:
    def __init__(self, copies: CopyService, clock: Clock, metrics: Metrics) -> None:
        self._copies = copies
        self._clock = clock
        self._metrics = metrics
        self._wanted = asyncio.Event()
        self._background = Background("copying of feedback")

    def wake(self) -> None:
        """A rating was given."""
        self._wanted.set()

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            try:
                is_done = await self._copies.make() < BATCH
                await self._note_lag()
            except (DBAPIError, OSError) as error:
                logger.warning("ratings wait to be anonymized: %s", type(error).__name__)
                await asyncio.sleep(PAUSE_S)
                continue
            if is_done:
                await self._pause()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._wanted.wait(), POLL_S)
        except TimeoutError:
            return
        self._wanted.clear()

    async def _note_lag(self) -> None:
        since = await self._copies.waiting_since()
        lag_s = (self._clock.now() - since).total_seconds() if since else 0.0
        self._metrics.note_feedback_lag(max(0.0, lag_s))
