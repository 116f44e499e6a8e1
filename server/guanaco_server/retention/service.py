"""Keeps a competition's conversations as long as its rules say, and no longer.

    PostgreSQL   by period (partitions/): its partitions of messages, ratings and copies are dropped; then the conversations'
                 own rows, which are few and small, go in batches
    SQLite, and what is older than partitions
                 in batches, with all that belongs to them

Conversations that began before the retention are removed; with periods, up to a period later. The scores of its competition are counted
again from what is left. A frozen season's ranking stays as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import CHOSEN, Competition
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.partitions.ids import CONVERSATION, all_bounds, bounds
from guanaco_server.partitions.service import AHEAD, Period, Periods
from guanaco_server.runtime.clock import Clock

logger = logging.getLogger(__name__)

BATCH = 500  # conversations in one transaction
USUAL_WIDTH = timedelta(days=30)
EARLIEST = datetime.min.replace(tzinfo=UTC)
PERIODS_KEPT = 8  # of a competition with a retention: what is kept too long is an eighth of it


class RetentionService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        periods: Periods,
        competitions: CompetitionService,
        conversations: ConversationService,
        feedback: FeedbackService,
        counter: ScoreCounter,
    ) -> None:
        self._database = database
        self._clock = clock
        self._periods = periods
        self._competitions = competitions
        self._conversations = conversations
        self._feedback = feedback
        self._counter = counter
        self._deleted_until: dict[str, datetime] = {}  # none begins there any more

    async def keep(self) -> int:
        """Make the periods that are missing, and remove what has been kept long enough. Return how many conversations went."""
        competitions = await self._competitions.list_all()
        await self._periods.make(self._widths(competitions))
        removed = 0
        for one in competitions:
            if one.retention_days is not None:
                removed += await self._remove(one.id, timedelta(days=one.retention_days))
        if removed:
            await self._database.empty_log()
            logger.info("removed %d conversations after their retention", removed)
        return removed

    def _widths(self, competitions: Sequence[Competition]) -> dict[str, timedelta]:
        """Return how long the next period is of each competition that takes conversations, or soon will."""
        soon = self._clock.now() + AHEAD
        widths = {CHOSEN: USUAL_WIDTH}
        for one in competitions:
            if one.frozen_at is None and (
                one.is_running(soon) or one.is_running(self._clock.now())
            ):
                widths[one.id] = width_for(one.retention_days)
        return widths

    async def _remove(self, competition: str, retention: timedelta) -> int:
        before = self._clock.now() - retention
        removed = 0
        for period in await self._periods.ended(competition, before):
            removed += await self._drop(period)
        since = self._deleted_until.get(competition, EARLIEST)
        while count := await self._delete_batch(competition, since, before):
            removed += count
        self._deleted_until[competition] = max(since, before)
        return removed

    async def _drop(self, period: Period) -> int:
        """May be repeated from wherever it was interrupted."""
        await self._periods.drop(period)

        async def erase(session: AsyncSession) -> int:
            ids = await chat_records.within(session, bounds(CONVERSATION, period.number), BATCH)
            await self._feedback.erase(session, (), ids)
            await self._conversations.erase(session, ids)
            if len(ids) < BATCH:
                await self._counter.recount_competition(session, period.competition)
                await self._periods.note_dropped(session, period)
            return len(ids)

        removed, last = 0, BATCH
        while last == BATCH:
            last = await self._database.write_unit(erase)
            removed += last
        return removed

    async def _delete_batch(self, competition: str, since: datetime, before: datetime) -> int:
        async def delete(session: AsyncSession) -> int:
            found = await chat_records.begun_between(
                session, competition, since, before, all_bounds(CONVERSATION), BATCH
            )
            ids = list(found)
            if ids:
                ratings = await self._feedback.lock_of_conversations(session, ids)
                await self._counter.recount(session, set(found.values()))
                await self._feedback.erase(session, ratings, ids)
                await self._conversations.erase(session, ids)
            return len(ids)

        return await self._database.write_unit(delete)


def width_for(retention_days: int | None) -> timedelta:
    """Return the length of a period; whole days."""
    if retention_days is None:
        return USUAL_WIDTH
    return min(USUAL_WIDTH, timedelta(days=max(1, retention_days // PERIODS_KEPT)))
