"""Fills the outbox and sends what is due: when a status changes here, a try ends, or something was committed.

While deliveries wait to be sent it looks every few seconds, because a try is due by its time."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from guanaco_server.database.commits import LOOK_ANYWAY_S, CommitWatch
from guanaco_server.database.database import Database
from guanaco_server.notifications import queries
from guanaco_server.notifications.outbox import Outbox
from guanaco_server.notifications.sender import WebhookSender
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

KEPT = timedelta(days=30)  # how far back a developer can look
POLL_S = 5.0  # status changes of this process are told at once
FORGET_EVERY = timedelta(hours=1)

logger = logging.getLogger(__name__)


class NotificationLoop:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        outbox: Outbox,
        sender: WebhookSender,
        commits: CommitWatch,
    ) -> None:
        self._database = database
        self._clock = clock
        self._outbox = outbox
        self._sender = sender
        self._commits = commits
        self._forgot_at: datetime | None = None
        self.poll_s = POLL_S
        self._background = Background("notifications")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()
        await self._sender.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._outbox.fill()
                has_pending = await self._sender.has_pending()
                if has_pending:
                    await self._sender.send_due()
                await self._forget()
            except (DBAPIError, OSError) as error:
                logger.warning("webhooks not sent; database failed: %s", error)
                await asyncio.sleep(self.poll_s)
                self._commits.reset()
                has_pending = True
            await self._commits.wait(self.poll_s, self.poll_s if has_pending else LOOK_ANYWAY_S)

    async def _forget(self) -> None:
        now = self._clock.now()
        if self._forgot_at is None or now - self._forgot_at >= FORGET_EVERY:
            await self._database.write_unit(lambda session: queries.forget(session, now - KEPT))
            self._forgot_at = now
