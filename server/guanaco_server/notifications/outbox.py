"""Writes deliveries for what has happened, as the database has it: whichever process wrote it, and whenever this one
was last alive. Writing the same again changes nothing, so that each happening has one delivery."""

from __future__ import annotations

from collections.abc import Sequence

from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting.readers import RatingCounts
from guanaco_server.notifications import queries
from guanaco_server.notifications.messages import (
    Happening,
    delivery,
    feedback_happenings,
    status_happenings,
)
from guanaco_server.notifications.tables import WebhookRow
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.events import EventFeed, EventHead

NOTHING_TOLD = (0, 0)


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

    async def fill(self) -> None:
        async with self._database.read() as session:
            webhooks = {row.account_id: row for row in await queries.all_webhooks(session)}
            if not webhooks:
                return
            progress = await queries.all_progress(session)
            heads = await self._events.heads(session, list(webhooks))
        counts = await self._rating_counts.kept()
        for head in heads:
            webhook = webhooks[head.account_id]
            told = progress.get((webhook.id, head.submission_id), NOTHING_TOLD)
            count = counts.get(head.submission_id, 0)
            if head.event_count > told[0] or count > told[1]:
                await self._tell(webhook, head, told, count)

    async def _tell(
        self, webhook: WebhookRow, head: EventHead, told: tuple[int, int], count: int
    ) -> None:
        event_seq, feedback_count = told
        happenings: list[Happening] = []
        if head.event_count > event_seq:
            statuses = await self._events.statuses(head.submission_id)
            happenings += status_happenings(head.submission_id, statuses, event_seq)
            event_seq = max([head.event_count, *(one.seq for one in statuses)])
        if count > feedback_count:
            counted, feedback_count = feedback_happenings(
                head.submission_id,
                feedback_count,
                count,
                webhook.feedback_every,
                self._clock.now(),
            )
            happenings += counted
        await self._write(webhook, head.submission_id, happenings, event_seq, feedback_count)

    async def _write(
        self,
        webhook: WebhookRow,
        submission_id: str,
        happenings: Sequence[Happening],
        event_seq: int,
        feedback_count: int,
    ) -> None:
        now = self._clock.now()
        rows = [delivery(one, webhook.id, self._link_base, now) for one in happenings]
        async with self._database.write() as session:
            if not await queries.exists(session, webhook.id):
                return  # removed meanwhile
            await queries.add_deliveries(session, rows)
            await queries.note_progress(
                session, webhook.id, submission_id, event_seq, feedback_count
            )
