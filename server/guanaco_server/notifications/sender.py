"""Sends the deliveries in the outbox at least once.

A try is leased in the database, so a delivery that a dead process held is due again when its lease has expired. No
receiver waits for another: each has at most PER_WEBHOOK tries under way.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from guanaco import __version__
from guanaco.webhooks import DeliveryState, signature
from guanaco_server.database.database import Database
from guanaco_server.notifications import queries
from guanaco_server.notifications.client import DeliveryResult, WebhookClient
from guanaco_server.notifications.tables import WebhookDeliveryRow, WebhookRow
from guanaco_server.runtime.clock import Clock

# Seconds after each failed try: together 23.7 hours, then the delivery is given up.
RETRIES_S = (10, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 28_800)
JITTER = 0.2  # share by which each wait varies, so that receivers that failed together are not retried together
PER_WEBHOOK = 2
MAX_UNDER_WAY = 256
LEASE_S = 60  # longer than any try takes

logger = logging.getLogger(__name__)


class WebhookSender:
    """Sends due deliveries; calls ``note_end`` after each try."""

    def __init__(
        self, database: Database, clock: Clock, client: WebhookClient, note_end: Callable[[], None]
    ) -> None:
        self._database = database
        self._clock = clock
        self._client = client
        self._note_end = note_end
        self._under_way: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()

    async def has_pending(self) -> bool:
        """Tell whether any delivery has yet to arrive, now or by another try."""
        async with self._database.read() as session:
            return await queries.has_pending(session)

    async def send_due(self) -> int:
        """Begin the tries that are due, and return how many."""
        room = MAX_UNDER_WAY - len(self._under_way)
        if room <= 0:
            return 0
        now, token = self._clock.now(), uuid.uuid4().hex
        busy = [webhook for webhook, tries in self._busy.items() if tries]
        claimed = await self._database.write_unit(
            lambda session: queries.claim(
                session,
                token,
                now,
                now + timedelta(seconds=LEASE_S),
                busy=busy,
                per_webhook=PER_WEBHOOK,
                limit=room,
            )
        )
        for delivery, webhook in claimed:
            self._begin(delivery, webhook, token)
        return len(claimed)

    async def stop(self) -> None:
        """Cancel the tries that are under way; their leases expire."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until every try that was begun has ended."""
        await asyncio.gather(*self._under_way)

    def _begin(self, delivery: WebhookDeliveryRow, webhook: WebhookRow, token: str) -> None:
        self._busy[webhook.id] += 1
        task = asyncio.create_task(self._attempt(delivery, webhook, token))
        self._under_way.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            self._busy -= Counter((webhook.id,))
            self._note_end()

        task.add_done_callback(end)

    async def _attempt(self, delivery: WebhookDeliveryRow, webhook: WebhookRow, token: str) -> None:
        body = delivery.body.encode()
        headers = _headers(delivery.id, webhook, self._clock.now(), body)
        result = await self._client.post(webhook.url, headers, body)
        columns = after_try(delivery.attempts + 1, result, self._clock.now())
        try:
            await self._database.write_unit(
                lambda session: queries.settle(session, delivery.id, token, **columns)
            )
        except (DBAPIError, OSError) as error:  # its lease expires, and it is sent again
            logger.warning("webhook delivery not recorded; sending it again: %s", error)


def _headers(message_id: str, webhook: WebhookRow, now: datetime, body: bytes) -> dict[str, str]:
    """Sign at the time of the try, also with the secret before the last rotation while it is valid."""
    secrets = [webhook.secret]
    if webhook.old_secret and webhook.old_secret_until and now < webhook.old_secret_until:
        secrets.append(webhook.old_secret)
    timestamp = int(now.timestamp())
    return {
        "content-type": "application/json",
        "user-agent": f"guanaco/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            signature(secret, message_id, timestamp, body) for secret in secrets
        ),
    }


def after_try(attempts: int, result: DeliveryResult, now: datetime) -> dict[str, object]:
    """Return the columns of a message after its n-th try: it has arrived, is tried again, or is given up."""
    columns: dict[str, object] = {
        "attempts": attempts,
        "last_attempt_at": now,
        "last_result": result.result,
    }
    if result.is_accepted:
        return columns | {"state": DeliveryState.DELIVERED}
    if result.is_final or attempts > len(RETRIES_S):
        return columns | {"state": DeliveryState.GIVEN_UP}
    spread = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - nothing to guess
    return columns | {"next_attempt_at": now + timedelta(seconds=RETRIES_S[attempts - 1] * spread)}
