"""The loop that deletes answers which are no longer honoured. One process at a time runs it."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import DBAPIError

from guanaco_server.idempotency.service import EXPIRED_AT_ONCE, IdempotencyService
from guanaco_server.runtime.background import Background

PAUSE_S = 60.0

logger = logging.getLogger(__name__)


class ExpiryLoop:
    def __init__(self, service: IdempotencyService) -> None:
        self._service = service
        self._background = Background("expiry of answers")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def _run(self) -> None:
        while True:
            try:
                has_more = await self._service.expire() == EXPIRED_AT_ONCE
            except (DBAPIError, OSError) as error:
                logger.warning(
                    "old answers were not deleted; retrying in 60 s: %s", type(error).__name__
                )
                has_more = False
            if not has_more:
                await asyncio.sleep(PAUSE_S)
