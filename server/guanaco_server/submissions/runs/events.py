"""Follows a submission's events: recorded ones first, then each new one, also as server-sent events.

``StatusChanges`` tells this process's listeners that a status has changed, after the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import SubmissionNotFound
from guanaco.submissions import Level, Status, SubmissionEvent
from guanaco_server.database.database import Database
from guanaco_server.http.sse import HEARTBEAT, encode_event
from guanaco_server.submissions.rollouts import queries as rollout_queries
from guanaco_server.submissions.runs import queries
from guanaco_server.submissions.tables import SubmissionEventRow

POLL_S = 0.25  # also notices what another process wrote; a quarter of a second feels live
PAGE = 200


HEARTBEAT_S = 10


@dataclass(frozen=True)
class EventHead:
    """A submission and the number of its last event."""

    submission_id: str
    account_id: str
    event_count: int


@dataclass(frozen=True)
class LogFilter:
    """``before`` is the number that events must be under; ``level`` the least that they must have."""

    level: Level | None = None
    text: str = ""
    before: int | None = None

    @property
    def hidden_levels(self) -> list[Level]:
        """A level of a newer version is never hidden."""
        known = list(Level)
        return known[: known.index(self.level)] if self.level in known else []

    def lets_through(self, event: SubmissionEvent) -> bool:
        words = f"{event.stage or ''}\n{event.message}".lower()
        return event.level not in self.hidden_levels and self.text.lower() in words


@dataclass(frozen=True)
class LogPage:
    events: list[SubmissionEvent]
    has_earlier: bool


class EventFeed:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def follow(
        self, submission_id: str, after: int, wait: bool = True
    ) -> AsyncIterator[SubmissionEvent | None]:
        """Events with a ``seq`` over ``after``, until the pipeline has ended and all is sent. Return None if there is nothing new. Without ``wait``, return only what is recorded now."""
        while True:
            events, is_in_progress = await self._load(submission_id, after)
            for event in events:
                yield event
            if events:
                after = events[-1].seq
            elif not is_in_progress or not wait:
                return
            else:
                yield None
                await asyncio.sleep(POLL_S)

    async def heads(self, session: AsyncSession, account_ids: Collection[str]) -> list[EventHead]:
        """Read the heads of all submissions of these accounts, within the caller's transaction."""
        rows = await queries.event_counts(session, account_ids)
        return [EventHead(*row) for row in rows]

    async def statuses(self, submission_id: str) -> list[SubmissionEvent]:
        """List every change of a submission's status, oldest first."""
        async with self._database.read() as session:
            return [_event(row) for row in await queries.status_events(session, submission_id)]

    async def page(self, submission_id: str, wanted: LogFilter, limit: int) -> LogPage:
        """Read the last ``limit`` events that fit, oldest first."""
        async with self._database.read() as session:
            rows = await queries.last_events(
                session,
                submission_id,
                limit + 1,
                wanted.before,
                wanted.hidden_levels,
                wanted.text,
            )
        events = [_event(row) for row in reversed(rows[:limit])]
        return LogPage(events, has_earlier=len(rows) > limit)

    async def _load(self, submission_id: str, after: int) -> tuple[list[SubmissionEvent], bool]:
        async with self._database.read() as session:
            is_in_progress = await rollout_queries.is_in_progress(session, submission_id)
            if is_in_progress is None:
                raise SubmissionNotFound(submission_id)
            rows = await queries.events_after(session, submission_id, after, PAGE)
            return [_event(row) for row in rows], is_in_progress


def _event(row: SubmissionEventRow) -> SubmissionEvent:
    return SubmissionEvent(**{name: getattr(row, name) for name in SubmissionEvent.model_fields})


async def encoded(events: AsyncIterator[SubmissionEvent | None]) -> AsyncIterator[bytes]:
    quiet_since = time.monotonic()
    async for event in events:
        if event is not None:
            quiet_since = time.monotonic()
            yield encode_event(event.kind, event, event.seq)
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            quiet_since = time.monotonic()
            yield HEARTBEAT


Listener = Callable[[str, Status], None]


class StatusChanges:
    """Listeners must be quick: they set an event, and somebody else does the work."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def announce(self, submission_id: str, status: Status) -> None:
        for listener in self._listeners:
            listener(submission_id, status)
