"""Writes deliveries for the status events, ratings and claims of boards that the database has, whichever process wrote those.

A delivery's id is made of what it tells, so that writing it again changes nothing. Its body has ids, counts, times
and a link, and nothing that a user wrote:

    {"type": "feedback_count", "timestamp": "…", "data": {"submission_id": "…", "feedback_count": 50, "link": "…"}}
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import Status, SubmissionEvent
from guanaco.webhooks import DeliveryState, WebhookEvent
from guanaco_server.database.database import Database
from guanaco_server.leaderboard import claims
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.notifications import queries
from guanaco_server.notifications.tables import WebhookDeliveryRow, WebhookRow
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.runs.events import EventFeed, EventHead

NO_PROGRESS = (0, 0)
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "guanaco:webhooks")
CLAIMS_FROM = timedelta(days=1)  # what a process that has just started looks at again
COUNTS_AT_ONCE = 100  # counts told in one look; the next look tells more


@dataclass(frozen=True)
class Notification:
    """An event that a webhook tells. ``number`` tells it from others of its kind: the event's number, the count, or the claim."""

    event: WebhookEvent
    submission_id: str
    number: int | str
    at: datetime
    facts: dict[str, Any]


class Outbox:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        events: EventFeed,
        counts: RatingCounts,
        link_base: str,
    ) -> None:
        self._database = database
        self._clock = clock
        self._events = events
        self._rating_counts = counts
        self._link_base = link_base
        self._claims_since = clock.now() - CLAIMS_FROM

    async def fill(self) -> None:
        async with self._database.read() as session:
            webhooks = {row.account_id: row for row in await queries.all_webhooks(session)}
            if not webhooks:
                return
            progress = await queries.all_progress(session)
            heads = await self._events.heads(session, list(webhooks))
            made = await claims.since(session, self._claims_since)
        await self._notify_claims(
            made, {one.submission_id: webhooks[one.account_id] for one in heads}
        )
        counts = await self._rating_counts.kept()
        for head in heads:
            webhook = webhooks[head.account_id]
            progress_made = progress.get((webhook.id, head.submission_id), NO_PROGRESS)
            count = counts.get(head.submission_id, 0)
            if head.event_count > progress_made[0] or count > progress_made[1]:
                await self._notify(webhook, head, progress_made, count)

    async def _notify_claims(
        self, made: Sequence[claims.BoardClaim], webhooks: Mapping[str, WebhookRow]
    ) -> None:
        """Tell what boards have claimed since the last look. A claim that was told before is written once all the same."""
        now = self._clock.now()
        rows = [
            delivery(claim_notification(one), webhook.id, self._link_base, now)
            for one in made
            if (webhook := webhooks.get(one.submission_id)) and one.at >= webhook.created_at
        ]
        if rows:

            async def add(session: AsyncSession) -> None:
                there = {one.id for one in await queries.all_webhooks(session)}
                await queries.add_deliveries(
                    session, [row for row in rows if row.webhook_id in there]
                )

            await self._database.write_unit(add)
        if made:
            self._claims_since = made[-1].at

    async def _notify(
        self, webhook: WebhookRow, head: EventHead, notified: tuple[int, int], count: int
    ) -> None:
        event_seq, feedback_count = notified
        notifications: list[Notification] = []
        if head.event_count > event_seq:
            statuses = await self._events.statuses(head.submission_id)
            notifications += status_notifications(head.submission_id, statuses, event_seq)
            event_seq = max([head.event_count, *(one.seq for one in statuses)])
        if count > feedback_count:
            counted, feedback_count = feedback_notifications(
                head.submission_id,
                feedback_count,
                count,
                webhook.feedback_every,
                self._clock.now(),
            )
            notifications += counted
        await self._write(webhook, head.submission_id, notifications, event_seq, feedback_count)

    async def _write(
        self,
        webhook: WebhookRow,
        submission_id: str,
        notifications: Sequence[Notification],
        event_seq: int,
        feedback_count: int,
    ) -> None:
        now = self._clock.now()
        rows = [delivery(one, webhook.id, self._link_base, now) for one in notifications]

        async def write(session: AsyncSession) -> None:
            if not await queries.exists(session, webhook.id):
                return  # removed meanwhile
            await queries.add_deliveries(session, rows)
            await queries.note_progress(
                session, webhook.id, submission_id, event_seq, feedback_count
            )

        await self._database.write_unit(write)


def delivery(
    notification: Notification, webhook_id: str, link_base: str, now: datetime
) -> WebhookDeliveryRow:
    """Make a delivery. Its id is the same for the same notification, whoever makes it and how often."""
    name = f"{webhook_id} {notification.submission_id} {notification.event} {notification.number}"
    data = {"submission_id": notification.submission_id, **notification.facts}
    data["link"] = f"{link_base}/submissions/{notification.submission_id}"
    return _row(
        f"msg_{uuid.uuid5(NAMESPACE, name).hex}",
        webhook_id,
        notification.event,
        data,
        notification.at,
        now,
        notification.submission_id,
    )


def test_delivery(webhook_id: str, link_base: str, now: datetime) -> WebhookDeliveryRow:
    data = {"submission_id": None, "link": link_base or "/"}
    return _row(f"msg_{uuid.uuid4().hex}", webhook_id, WebhookEvent.TEST, data, now, now, None)


def status_notifications(
    submission_id: str, events: Sequence[SubmissionEvent], after: int
) -> Iterator[Notification]:
    """Return the notifications of a submission's status events with numbers above ``after``.

    ``events`` are all of them. A reactivated submission is no news.
    """
    before = None
    for event in events:
        status, last = event.data.get("status"), before
        before = status
        if event.seq <= after:
            continue
        if status == Status.DEPLOYED and last != Status.INACTIVE:
            yield Notification(WebhookEvent.DEPLOYED, submission_id, event.seq, event.at, {})
        elif status == Status.FAILED:
            code = event.data.get("failure", {}).get("code")
            yield Notification(
                WebhookEvent.FAILED, submission_id, event.seq, event.at, {"failure": code}
            )


def claim_notification(claim: claims.BoardClaim) -> Notification:
    """Tell what a board said: its verdict is settled, or the submission's rank has changed."""
    kind = claims.SETTLED if claim.is_settled else claims.RANK
    facts = {"competition": claim.competition, "claim": kind, **claim.facts}
    number = f"{claim.competition} {claim.claim}"
    return Notification(WebhookEvent.VERDICT, claim.submission_id, number, claim.at, facts)


def feedback_notifications(
    submission_id: str, notified: int, count: int, every: int | None, now: datetime
) -> tuple[list[Notification], int]:
    """Return the notifications of the ratings after ``told``, and the rating up to which they tell."""
    found = []
    if notified == 0 and count > 0:
        found.append(_counted(WebhookEvent.FIRST_FEEDBACK, submission_id, 1, now))
    if every is None:
        return found, count
    marks = list(range((notified // every + 1) * every, count + 1, every))
    for mark in marks[:COUNTS_AT_ONCE]:
        found.append(_counted(WebhookEvent.FEEDBACK_COUNT, submission_id, mark, now))
    return found, count if len(marks) <= COUNTS_AT_ONCE else marks[COUNTS_AT_ONCE - 1]


def _counted(event: WebhookEvent, submission_id: str, count: int, now: datetime) -> Notification:
    return Notification(event, submission_id, count, now, {"feedback_count": count})


def _row(
    delivery_id: str,
    webhook_id: str,
    event: WebhookEvent,
    data: dict[str, Any],
    at: datetime,
    now: datetime,
    submission_id: str | None,
) -> WebhookDeliveryRow:
    message = {"type": event.value, "timestamp": at.isoformat(), "data": data}
    return WebhookDeliveryRow(
        id=delivery_id,
        webhook_id=webhook_id,
        submission_id=submission_id,
        event=event,
        body=json.dumps(message),
        state=DeliveryState.PENDING,
        attempts=0,
        created_at=now,
        next_attempt_at=now,
    )
