"""What a webhook says: ids, counts, times and a link; nothing that a user wrote, and nobody's name.

{"type": "feedback_count", "timestamp": "…", "data": {"submission_id": "…", "feedback_count": 50, "link": "…"}}
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from guanaco.submissions import Status, SubmissionEvent
from guanaco.webhooks import DeliveryState, WebhookEvent
from guanaco_server.notifications.tables import WebhookDeliveryRow

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "guanaco:webhooks")
COUNTS_AT_ONCE = 100  # counts passed in one look; more are told in the next


@dataclass(frozen=True)
class Happening:
    """``number`` tells it from others of its kind: the event's number, or the count of ratings."""

    event: WebhookEvent
    submission_id: str
    number: int
    at: datetime
    facts: dict[str, Any]


def delivery(
    happening: Happening, webhook_id: str, link_base: str, now: datetime
) -> WebhookDeliveryRow:
    """The same for the same happening, whoever writes it and how often."""
    name = f"{webhook_id} {happening.submission_id} {happening.event} {happening.number}"
    data = {"submission_id": happening.submission_id, **happening.facts}
    data["link"] = f"{link_base}/submissions/{happening.submission_id}"
    return _row(
        f"msg_{uuid.uuid5(NAMESPACE, name).hex}",
        webhook_id,
        happening.event,
        data,
        happening.at,
        now,
        happening.submission_id,
    )


def test_delivery(webhook_id: str, link_base: str, now: datetime) -> WebhookDeliveryRow:
    data = {"submission_id": None, "link": link_base or "/"}
    return _row(f"msg_{uuid.uuid4().hex}", webhook_id, WebhookEvent.TEST, data, now, now, None)


def status_happenings(
    submission_id: str, events: Sequence[SubmissionEvent], after: int
) -> Iterator[Happening]:
    """Of all of a submission's status events, those numbered over ``after``. Taken back from inactive is no news."""
    before = None
    for event in events:
        status, last = event.data.get("status"), before
        before = status
        if event.seq <= after:
            continue
        if status == Status.DEPLOYED and last != Status.INACTIVE:
            yield Happening(WebhookEvent.DEPLOYED, submission_id, event.seq, event.at, {})
        elif status == Status.FAILED:
            code = event.data.get("failure", {}).get("code")
            yield Happening(
                WebhookEvent.FAILED, submission_id, event.seq, event.at, {"failure": code}
            )


def feedback_happenings(
    submission_id: str, told: int, count: int, every: int | None, now: datetime
) -> tuple[list[Happening], int]:
    """What the ratings after ``told`` bring, and up to which rating that is told."""
    found = []
    if told == 0 and count > 0:
        found.append(_counted(WebhookEvent.FIRST_FEEDBACK, submission_id, 1, now))
    if every is None:
        return found, count
    marks = list(range((told // every + 1) * every, count + 1, every))
    for mark in marks[:COUNTS_AT_ONCE]:
        found.append(_counted(WebhookEvent.FEEDBACK_COUNT, submission_id, mark, now))
    return found, count if len(marks) <= COUNTS_AT_ONCE else marks[COUNTS_AT_ONCE - 1]


def _counted(event: WebhookEvent, submission_id: str, count: int, now: datetime) -> Happening:
    return Happening(event, submission_id, count, now, {"feedback_count": count})


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
