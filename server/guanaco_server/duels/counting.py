"""Reads a competition's counted duels by pair, for whoever chooses the next ones."""

from __future__ import annotations

from guanaco_server.database.database import Database
from guanaco_server.duels import queries
from guanaco_server.statistics.duel_strengths import PairCounts


class DuelCounts:
    """Reads what the last ranking has counted: the duels that the verdict tests, so that no pair looks shown that is open there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_pair(self, competition_id: str) -> PairCounts:
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.pairs_in(session, competition_id)
        return {(row.first, row.second): row.results.tested for row in rows}
