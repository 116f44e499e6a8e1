"""Sends the messages in the outbox to the operator's webhook, at least once, with the client and the retries of developers' webhooks.

A message waits for the earlier ones of its alert, so that nobody reads of an end before the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from guanaco import __version__
from guanaco.webhooks import DeliveryState
from guanaco_server.alerts import queries
from guanaco_server.alerts.tables import AlertMessageRow
from guanaco_server.database.database import Database
from guanaco_server.notifications.client import WebhookClient
from guanaco_server.notifications.sender import LEASE_S, after_try
from guanaco_server.runtime.clock import Clock

HEADERS = {"content-type": "application/json", "user-agent": f"guanaco/{__version__}"}
NO_RECEIVER = "alert_webhook_url is not set for the worker"


class AlertSender:
    """``url`` is a secret: whoever has it can write to the operator's channel."""

    def __init__(
        self, database: Database, clock: Clock, client: WebhookClient, url: str | None
    ) -> None:
        self._database = database
        self._clock = clock
        self._client = client
        self._url = url

    async def has_pending(self) -> bool:
        """Tell whether any message has yet to be delivered, now or by another try."""
        async with self._database.read() as session:
            return bool(await queries.pending(session))

    async def send_due(self) -> int:
        """Try each message that is due once, one after the other, and return how many that were."""
        async with self._database.read() as session:
            waiting = await queries.pending(session)
        tried = 0
        for row in due(waiting, self._clock.now()):
            tried += await self._attempt(row)
        return tried

    async def _attempt(self, row: AlertMessageRow) -> bool:
        """Try a message; False if another process does."""
        if self._url is None:
            columns: dict[str, object] = {
                "state": DeliveryState.GIVEN_UP,
                "attempts": row.attempts + 1,
                "last_attempt_at": self._clock.now(),
                "last_result": NO_RECEIVER,
            }
        else:
            leased_until = self._clock.now() + timedelta(seconds=LEASE_S)
            is_ours = await self._database.write_unit(
                lambda session: queries.claim(session, row, leased_until)
            )
            if not is_ours:
                return False
            result = await self._client.post(self._url, HEADERS, row.body.encode())
            columns = after_try(row.attempts + 1, result, self._clock.now())
        await self._database.write_unit(lambda session: queries.settle(session, row.id, **columns))
        return True


def due(waiting: Iterable[AlertMessageRow], now: datetime) -> Iterator[AlertMessageRow]:
    """Yield the messages whose time has come, of each alert the oldest only."""
    alerts: set[int] = set()
    for row in waiting:
        is_first = row.alert_id not in alerts
        if row.alert_id is not None:
            alerts.add(row.alert_id)
        if is_first and row.next_attempt_at <= now:
            yield row
