"""Answers what uniform assignment would have shown, from recorded decisions (statistics/off_policy.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.leaderboard import UniformRatios, UniformRow
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import DecidedConversation
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records as feedback_records
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.routing.recorded import recorded_pool
from guanaco_server.routing.snapshot import Pool
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.off_policy import AssignedConversation, uniform_ratios

MOST_CONVERSATIONS = 20_000  # the newest: some ten seconds with twenty submissions


class UniformService:
    def __init__(self, database: Database, clock: Clock, competitions: CompetitionService) -> None:
        self._database = database
        self._clock = clock
        self._competitions = competitions
        self._one_at_a_time = asyncio.Lock()

    async def ratios(self, competition_id: str) -> UniformRatios:
        """Estimate each submission's ratio had all been as likely to get each conversation."""
        competition = await self._competitions.find(competition_id)
        async with self._one_at_a_time:
            async with self._database.read(may_be_stale=True) as session:
                decided = await chat_records.decided(session, competition.id, MOST_CONVERSATIONS)
                thumbs = await feedback_records.thumbs(
                    session, [one.id for one in decided], flag_queries.left_out()
                )
                assigned = await _assigned(session, decided, thumbs)
            found = await asyncio.to_thread(uniform_ratios, assigned)
        rows = [UniformRow(submission_id=name, **vars(one)) for name, one in found.items()]
        return UniformRatios(
            at=self._clock.now(),
            competition=competition.id,
            conversations=len(assigned),
            unknown=len(decided) - len(assigned),
            rows=sorted(rows, key=lambda row: (-(row.ratio or -1.0), row.submission_id)),
        )


async def _assigned(
    session: AsyncSession, decided: Sequence[DecidedConversation], thumbs: dict[str, bool]
) -> list[AssignedConversation]:
    """Recompute the chances of each decision whose snapshot is still kept; each snapshot is read once."""
    pools: dict[str, Pool | None] = {}
    found = []
    for one in decided:
        digest = one.decision.snapshot
        if digest not in pools:
            pools[digest] = await recorded_pool(session, digest)
        pool = pools[digest]
        if pool is not None:
            chances = pool.chances(one.decision.seen, frozenset(one.decision.barred))
            found.append(
                AssignedConversation(
                    one.user_key, one.stratum, chances, one.submission_id, thumbs.get(one.id)
                )
            )
    return found
