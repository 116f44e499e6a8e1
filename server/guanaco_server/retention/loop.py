"""The loop that keeps to each competition's retention. One process at a time runs it."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import DBAPIError

from guanaco_server.retention.service import RetentionService
from guanaco_server.runtime.background import Background

PAUSE_S = 60.0

logger = logging.getLogger(__name__)


class RetentionLoop:
    def __init__(self, service: RetentionService) -> None:
        self._service = service
        self._background = Background("retention")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            try:
                if removed := await self._service.keep():
                    logger.info("removed %d conversations after their retention", removed)
            except (DBAPIError, OSError) as error:
                logger.warning(
                    "periods and retention were not kept; retrying in 60 s: %s",
                    str(getattr(error, "orig", error)).partition("\n")[0],
                )
            await asyncio.sleep(PAUSE_S)
