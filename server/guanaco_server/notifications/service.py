"""A developer's webhook: one an account, with a secret that is shown once."""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import WebhookNotFound
from guanaco.webhooks import (
    SECRET_PREFIX,
    Delivery,
    DeliveryState,
    Webhook,
    WebhookRequest,
    WebhookSet,
)
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.notifications import queries
from guanaco_server.notifications.addresses import require_allowed_url
from guanaco_server.notifications.outbox import test_delivery
from guanaco_server.notifications.tables import WebhookDeliveryRow, WebhookRow
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.runs.events import EventFeed

SECRET_BYTES = 32
SHOWN = 20
ROTATION = timedelta(days=1)  # both secrets sign, so that receivers have time to change


class WebhookService:
    """Manages webhooks. ``wake`` wakes the loop of this process, if it runs one."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        events: EventFeed,
        counts: RatingCounts,
        *,
        allow_private: bool,
        link_base: str,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._events = events
        self._rating_counts = counts
        self._allow_private = allow_private
        self._link_base = link_base
        self._wake = wake

    async def put(self, account: Account, request: WebhookRequest) -> WebhookSet:
        """Make a webhook, which tells of what happens from now on, or change one, which keeps its secret and progress."""
        require_allowed_url(request.url, allow_private=self._allow_private)
        async with self._database.read() as session:
            own = [head.submission_id for head in await self._events.heads(session, [account.id])]
        counts = await self._rating_counts.exact(own)
        try:
            return await self._put(account, request, counts)
        except IntegrityError:  # another request made it at the same time
            return await self._put(account, request, counts)

    async def read(self, account: Account) -> Webhook:
        async with self._database.read() as session:
            row = await _require(session, account)
            return Webhook(**await self._read(session, row))

    async def remove(self, account: Account) -> Webhook:
        """Remove a webhook with its deliveries, including those that wait."""

        async def remove(session: AsyncSession) -> Webhook:
            row = await _require(session, account)
            removed = Webhook(**await self._read(session, row))
            await queries.remove(session, row.id)
            return removed

        return await self._database.write_unit(remove)

    async def rotate(self, account: Account) -> WebhookSet:
        """Make a new secret. For a day both secrets sign."""

        async def rotate(session: AsyncSession) -> WebhookSet:
            row = await _require(session, account)
            row.old_secret, row.old_secret_until = row.secret, self._clock.now() + ROTATION
            row.secret = _new_secret()
            return WebhookSet(secret=row.secret, **await self._read(session, row))

        return await self._database.write_unit(rotate)

    async def test(self, account: Account) -> Delivery:
        """Send a test delivery. Its result is read with the webhook."""

        async def add(session: AsyncSession) -> WebhookDeliveryRow:
            row = await _require(session, account)
            delivery = test_delivery(row.id, self._link_base, self._clock.now())
            session.add(delivery)
            return delivery

        delivery = await self._database.write_unit(add)
        self._wake()
        return read_delivery(delivery)

    async def _put(
        self, account: Account, request: WebhookRequest, counts: dict[str, int]
    ) -> WebhookSet:
        async def put(session: AsyncSession) -> WebhookSet:
            row = await queries.by_account(session, account.id)
            secret = None
            if row is None:
                secret = _new_secret()
                row = _new_row(account, request, secret, self._clock.now())
                session.add(row)
                await session.flush()
                await self._begin_now(session, row, counts)
            row.url, row.feedback_every = request.url, request.feedback_every
            return WebhookSet(secret=secret, **await self._read(session, row))

        return await self._database.write_unit(put)

    async def _begin_now(
        self, session: AsyncSession, row: WebhookRow, counts: dict[str, int]
    ) -> None:
        for head in await self._events.heads(session, [row.account_id]):
            count = counts.get(head.submission_id, 0)
            await queries.note_progress(
                session, row.id, head.submission_id, head.event_count, count
            )

    @staticmethod
    async def _read(session: AsyncSession, row: WebhookRow) -> dict[str, object]:
        deliveries = await queries.newest_deliveries(session, row.id, SHOWN)
        return {
            "url": row.url,
            "feedback_every": row.feedback_every,
            "created_at": row.created_at,
            "old_secret_until": row.old_secret_until,
            "deliveries": [read_delivery(one) for one in deliveries],
        }


def read_delivery(row: WebhookDeliveryRow) -> Delivery:
    is_pending = row.state is DeliveryState.PENDING
    return Delivery(
        id=row.id,
        event=row.event,
        submission_id=row.submission_id,
        state=row.state,
        attempts=row.attempts,
        created_at=row.created_at,
        last_attempt_at=row.last_attempt_at,
        next_attempt_at=row.next_attempt_at if is_pending else None,
        last_result=row.last_result,
    )


def _new_row(account: Account, request: WebhookRequest, secret: str, now: datetime) -> WebhookRow:
    return WebhookRow(
        id=uuid.uuid4().hex,
        account_id=account.id,
        url=request.url,
        feedback_every=request.feedback_every,
        secret=secret,
        created_at=now,
    )


def _new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


async def _require(session: AsyncSession, account: Account) -> WebhookRow:
    row = await queries.by_account(session, account.id)
    if row is None:
        raise WebhookNotFound
    return row
