"""Builds the notifications room: webhooks, and the loop that sends them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.notifications.client import Resolve, WebhookClient, resolve
from guanaco_server.notifications.loop import NotificationLoop
from guanaco_server.notifications.outbox import Outbox
from guanaco_server.notifications.sender import WebhookSender
from guanaco_server.notifications.service import WebhookService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.submissions.runs.events import EventFeed, StatusChanges


@dataclass(frozen=True)
class NotificationsRoom:
    """``webhooks`` answers developers; one process at a time runs ``loop``."""

    webhooks: WebhookService
    outbox: Outbox
    sender: WebhookSender
    loop: NotificationLoop


def build_notifications(
    database: Database,
    clock: Clock,
    *,
    events: EventFeed,
    counts: RatingCounts,
    changes: StatusChanges,
    settings: Settings,
    resolve: Resolve = resolve,
) -> NotificationsRoom:
    """``resolve`` looks up host names; a test can answer with addresses of its own."""
    woken = asyncio.Event()
    changes.subscribe(lambda _id, _status: woken.set())
    link_base = (settings.webhook_link_base or "").rstrip("/")
    allow_private = settings.webhook_allow_private
    client = WebhookClient(
        allow_private=allow_private, timeout_s=settings.webhook_timeout_s, resolve=resolve
    )
    outbox = Outbox(database, clock, events, counts, link_base)
    sender = WebhookSender(database, clock, client, woken.set)
    loop = NotificationLoop(database, clock, outbox, sender, database.watch_commits(woken))
    webhooks = WebhookService(
        database,
        clock,
        events,
        counts,
        allow_private=allow_private,
        link_base=link_base,
        wake=woken.set,
    )
    return NotificationsRoom(webhooks, outbox, sender, loop)
