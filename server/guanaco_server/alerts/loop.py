"""Checks the figures once a minute and sends messages: when one is written, and while one waits every few seconds.

One process at a time does so."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from guanaco_server.alerts.sender import AlertSender
from guanaco_server.alerts.watch import AlertWatch
from guanaco_server.database.commits import CommitWatch
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

CHECK_EVERY = timedelta(minutes=1)
FORGET_EVERY = timedelta(hours=1)
POLL_S = 5.0  # a message that another process has written waits as long

logger = logging.getLogger(__name__)


class AlertLoop:
    def __init__(
        self, clock: Clock, watch: AlertWatch, sender: AlertSender, commits: CommitWatch
    ) -> None:
        self._clock = clock
        self._watch = watch
        self._sender = sender
        self._commits = commits
        self._checked_at: datetime | None = None
        self._forgot_at: datetime | None = None
        self._background = Background("alerts")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def run_once(self) -> None:
        """Do what is due."""
        now = self._clock.now()
        if self._checked_at is None or now - self._checked_at >= CHECK_EVERY:
            await self._watch.check()
            self._checked_at = now
        if self._forgot_at is None or now - self._forgot_at >= FORGET_EVERY:
            await self._watch.forget()
            self._forgot_at = now
        await self._sender.send_due()

    async def _run(self) -> None:
        while True:
            try:
                await self.run_once()
                rest_s = POLL_S if await self._sender.has_pending() else self._until_check_s()
            except (DBAPIError, OSError) as error:
                logger.warning("alerts not checked, or not sent; database failed: %s", error)
                await asyncio.sleep(POLL_S)
                rest_s = POLL_S
            await self._commits.wait(POLL_S, max(POLL_S, rest_s))

    def _until_check_s(self) -> float:
        if self._checked_at is None:
            return 0.0
        return (self._checked_at + CHECK_EVERY - self._clock.now()).total_seconds()
