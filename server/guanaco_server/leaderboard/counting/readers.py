"""Reads counted ratings: how many each submission has, and the votes of any period."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Subquery
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import OPEN
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.counting.votes import window_of
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.votes import VoteCount

FRESH = timedelta(minutes=1)
MAX_CACHED_PERIODS = 64

Period = tuple[datetime | None, datetime | None]


class RatingCounts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def kept(self) -> dict[str, int]:
        """Return the ratings of every submission as last counted: seconds old, and cheap to read often."""
        async with self._database.read() as session:
            return {submission: count for submission, count in await queries.rating_counts(session)}

    async def exact(self, submission_ids: Collection[str]) -> dict[str, int]:
        """Count the ratings of some submissions now."""
        async with self._database.read() as session:
            return await records.counts(session, submission_ids)


@dataclass(frozen=True)
class _CachedVotes:
    at: datetime
    votes: dict[str, VoteCount]


class PastVotes:
    """Counts the votes of a period from the ratings.

    A million ratings take seconds and anybody with a key may ask, so one period is counted at a time and each result
    is cached for a minute.
    """

    def __init__(self, database: Database, clock: Clock, competitions: CompetitionService) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._one_at_a_time = asyncio.Lock()
        self._cached: OrderedDict[Period, _CachedVotes] = OrderedDict()

    async def between(self, since: datetime | None, until: datetime | None) -> dict[str, VoteCount]:
        """Return the open competition's votes that were given from ``since`` until before ``until``."""
        async with self._one_at_a_time:
            known, now = self._cached.get((since, until)), self._clock.now()
            if known is None or now - known.at >= FRESH:
                known = _CachedVotes(now, await self._count(since, until))
                self._cached[since, until] = known
                self._cached.move_to_end((since, until))
                if len(self._cached) > MAX_CACHED_PERIODS:
                    self._cached.popitem(last=False)
            return known.votes

    async def _count(self, since: datetime | None, until: datetime | None) -> dict[str, VoteCount]:
        window = window_of(await self._competitions.find(OPEN))
        since = max(since or window.starts_at, window.starts_at)
        until = min((at for at in (until, window.ends_at) if at is not None), default=None)
        async with self._database.read() as session:
            left_out = flag_queries.left_out()
            rows = await records.votes_between(session, OPEN, since, until, left_out)
        return {submission_id: VoteCount(up, down) for submission_id, up, down in rows}


async def votes_by_variant(session: AsyncSession, groups: Subquery) -> dict[str, VoteCount]:
    """Count the first rating of each unit that no rule leaves out, by variant of an experiment."""
    return await records.first_votes_by_variant(session, groups, flag_queries.left_out())
