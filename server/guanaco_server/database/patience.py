"""Waits for a database that goes away in the middle of a start, as every loop does later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from guanaco_server.database.database import Database, unavailable
from guanaco_server.database.schema import LONGEST_WAIT_S

RETRY_S = 1.0

T = TypeVar("T")
Step = Callable[[], Awaitable[T]]

logger = logging.getLogger(__name__)


class StartPatience:
    """Carries out the steps of a start. ``longest_s`` is how long one may wait for the database.

    SQLite's file does not come back by itself, so nothing waits for it.
    """

    def __init__(self, database: Database) -> None:
        is_server = database.engine.dialect.name == "postgresql"
        self.longest_s: float = LONGEST_WAIT_S if is_server else 0.0
        self.retry_s = RETRY_S
        self._file = None if is_server else database.engine.url.database

    async def carry_out(self, step: Step[T], undo: Step[None] | None = None) -> T:
        """Repeat the step until the database does not fail it. ``undo`` ends what a failed step has begun.

        Raises:
            DatabaseUnavailable: It failed for as long as it may.
        """
        failing_since: float | None = None
        while True:
            try:
                return await step()
            except (OperationalError, InterfaceError) as error:
                reason, now = unavailable(error, self._file), time.monotonic()
                if failing_since is None:
                    failing_since = now
                    if self.longest_s:
                        logger.warning(
                            "%s The start waits for it, at most %g s.",
                            reason.detail,
                            self.longest_s,
                        )
                if now - failing_since >= self.longest_s:
                    raise reason from error
            if undo is not None:
                await undo()
            await asyncio.sleep(self.retry_s)
