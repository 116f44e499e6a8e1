"""Counts a competition's duels by pair, for whoever chooses the next ones."""

from __future__ import annotations

from collections import defaultdict

from guanaco_server.database.database import Database
from guanaco_server.duels import queries
from guanaco_server.duels.scores import result_for
from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.duel_strengths import PairCounts


class DuelCounts:
    """Counts every vote that stands, also those that the ranking leaves out: they mislead no claim, only the choice of pairs.

    A vote whose outcome only a newer version knows is left out, as the ranking does.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_pair(self, competition_id: str) -> PairCounts:
        async with self._database.read(may_be_stale=True) as session:
            votes = await queries.results_in(session, competition_id)
        found: defaultdict[tuple[str, str], DuelCount] = defaultdict(DuelCount)
        for a, b, outcome, count in votes:
            if a == b or outcome.is_unknown:
                continue
            first, second = sorted((a, b))
            result = result_for("a" if a == first else "b", outcome)
            found[first, second] = _plus(found[first, second], result, count)
        return dict(found)


def _plus(duels: DuelCount, result: str, count: int) -> DuelCount:
    match result:
        case "won":
            return duels._replace(won=duels.won + count)
        case "lost":
            return duels._replace(lost=duels.lost + count)
    return duels._replace(tied=duels.tied + count)
