"""The room's parts, put together."""

from __future__ import annotations

import asyncio

from guanaco_server.database.database import Database
from guanaco_server.leaderboard.rating_counts import RatingCounts
from guanaco_server.notifications.courier import Courier, Resolve, resolve
from guanaco_server.notifications.loop import NotificationLoop
from guanaco_server.notifications.outbox import Outbox
from guanaco_server.notifications.sender import Sender
from guanaco_server.notifications.service import WebhookService
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import NotificationSettings
from guanaco_server.submissions.events import EventFeed, StatusChanges


class Notifications:
    """``webhooks`` answers developers; ``loop`` runs in one process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        events: EventFeed,
        counts: RatingCounts,
        changes: StatusChanges,
        settings: NotificationSettings,
        resolve: Resolve = resolve,
    ) -> None:
        woken = asyncio.Event()
        changes.subscribe(lambda _id, _status: woken.set())
        link_base = (settings.webhook_link_base or "").rstrip("/")
        allow_private = settings.webhook_allow_private
        courier = Courier(
            allow_private=allow_private, timeout_s=settings.webhook_timeout_s, resolve=resolve
        )
        self.outbox = Outbox(database, clock, events, counts, link_base)
        self.sender = Sender(database, clock, courier, woken.set)
        self.loop = NotificationLoop(
            database, clock, self.outbox, self.sender, woken, settings.webhook_poll_s
        )
        self.webhooks = WebhookService(
            database,
            clock,
            events,
            counts,
            allow_private=allow_private,
            link_base=link_base,
            wake=woken.set,
        )
