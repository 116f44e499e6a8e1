"""Answers what uniform assignment would have shown, from recorded decisions (statistics/off_policy.py).

    began a day ago or earlier   added once to the competition's running sums, in the order in which they began
    began since                  added to a copy of them, for their ratings may still come or change

So what is shown at all looks is one sequence with a fixed start. The running sums are in memory: after a start of the process the first
requests add what there is, a limited number of conversations each, and the answer says whether it has come to the end.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from guanaco.leaderboard import UniformRatios, UniformRow
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import DecidedConversation
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records as feedback_records
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.routing.records import recorded_pool
from guanaco_server.routing.snapshot import Pool
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.off_policy import AssignedConversation, UniformSums

SETTLED = timedelta(days=1)  # a rating may be changed for so long
AT_ONCE = 1_000  # conversations: half a second with twenty submissions
MOST_CONVERSATIONS = 20_000  # added by one request


@dataclass
class _RunningSums:
    """The sums so far; ``last`` is the begin and the id of the last conversation."""

    sums: UniformSums = field(default_factory=UniformSums)
    conversations: int = 0
    unknown: int = 0
    last: tuple[datetime, str] | None = None


@dataclass(frozen=True)
class _Part:
    decided: Sequence[DecidedConversation]
    thumbs: dict[str, bool]
    pools: dict[str, Pool | None]


class UniformService:
    def __init__(self, database: Database, clock: Clock, competitions: CompetitionService) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._one_at_a_time = asyncio.Lock()
        self._settled: dict[str, _RunningSums] = {}

    async def ratios(self, competition_id: str) -> UniformRatios:
        """Estimate each submission's ratio had all been as likely to get each conversation."""
        competition = await self._competitions.find(competition_id)
        async with self._one_at_a_time:
            now = self._clock.now()
            settled = self._settled.setdefault(competition.id, _RunningSums())
            left = MOST_CONVERSATIONS
            left = await self._add(competition.id, settled, now - SETTLED, left)
            shown = await threads.PAGES.run(copy.deepcopy, settled)
            left = await self._add(competition.id, shown, None, left)
            found = await threads.PAGES.run(shown.sums.ratios)
        rows = [UniformRow(submission_id=name, **vars(one)) for name, one in found.items()]
        return UniformRatios(
            at=now,
            competition=competition.id,
            conversations=shown.conversations,
            unknown=shown.unknown,
            is_whole=left > 0,
            rows=sorted(rows, key=lambda row: (-(row.ratio or -1.0), row.submission_id)),
        )

    async def _add(
        self, competition: str, added: _RunningSums, before: datetime | None, left: int
    ) -> int:
        """Add conversations that began before a time, in parts; return how many more this request may add."""
        while left > 0:
            limit = min(AT_ONCE, left)
            part = await self._read(competition, added.last, before, limit)
            await threads.PAGES.run(_add_part, added, part)
            left -= len(part.decided)
            if len(part.decided) < limit:
                break
        return left

    async def _read(
        self,
        competition: str,
        after: tuple[datetime, str] | None,
        before: datetime | None,
        limit: int,
    ) -> _Part:
        async with self._database.read(may_be_stale=True) as session:
            decided = await chat_records.decided(session, competition, after, before, limit)
            ids = [one.id for one in decided]
            thumbs = await feedback_records.thumbs(session, ids, flag_queries.left_out())
            digests = {one.decision.snapshot for one in decided}
            pools = {digest: await recorded_pool(session, digest) for digest in digests}
        return _Part(decided, thumbs, pools)


def _add_part(added: _RunningSums, part: _Part) -> None:
    """Compute the chances of each decision whose snapshot is still kept, and add it. No user's name is kept."""
    for one in part.decided:
        pool = part.pools[one.decision.snapshot]
        added.last = (one.at, one.id)
        if pool is None:
            added.unknown += 1
            continue
        chances = pool.chances(one.decision.seen, frozenset(one.decision.barred))
        added.conversations += 1
        added.sums.add(
            AssignedConversation(
                hash(one.user_key), one.stratum, chances, one.submission_id, part.thumbs.get(one.id)
            )
        )
