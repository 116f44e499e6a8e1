"""VoteCount of any stretch of time, counted from the ratings: for who asks for a past that nobody has kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco.competitions import OPEN
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records
from guanaco_server.feedback.records import VoteCount
from guanaco_server.leaderboard import flag_queries
from guanaco_server.leaderboard.votes import window_of
from guanaco_server.runtime.clock import Clock

FRESH = timedelta(minutes=1)
MOST_KEPT = 64  # stretches

Stretch = tuple[datetime | None, datetime | None]


@dataclass(frozen=True)
class _Counted:
    at: datetime
    votes: dict[str, VoteCount]


class PastVotes:
    """One count at a time, each kept for a minute: a million ratings take seconds, and anybody with a key may ask."""

    def __init__(self, database: Database, clock: Clock, competitions: CompetitionService) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._one_at_a_time = asyncio.Lock()
        self._kept: OrderedDict[Stretch, _Counted] = OrderedDict()

    async def between(self, since: datetime | None, until: datetime | None) -> dict[str, VoteCount]:
        """In the open competition, of ratings at ``since`` or later and before ``until`` that no rule leaves out."""
        async with self._one_at_a_time:
            known, now = self._kept.get((since, until)), self._clock.now()
            if known is None or now - known.at >= FRESH:
                known = _Counted(now, await self._count(since, until))
                self._kept[since, until] = known
                self._kept.move_to_end((since, until))
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            return known.votes

    async def _count(self, since: datetime | None, until: datetime | None) -> dict[str, VoteCount]:
        window = window_of(await self._competitions.find(OPEN))
        since = max(since or window.starts_at, window.starts_at)
        until = min((at for at in (until, window.ends_at) if at is not None), default=None)
        async with self._database.read() as session:
            left_out = flag_queries.left_out()
            rows = await records.votes_between(session, OPEN, since, until, left_out)
        return {submission_id: VoteCount(up, down) for submission_id, up, down in rows}
