"""How the scores and metrics of submissions went, for those who draw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco.competitions import OPEN
from guanaco.leaderboard import LeaderboardRow
from guanaco_server.database.database import Database
from guanaco_server.leaderboard import standing_queries
from guanaco_server.leaderboard.figures import Figures
from guanaco_server.runtime.clock import Clock

SHOWN = timedelta(days=90)
NOTHING = Figures()


@dataclass(frozen=True, slots=True)
class Past:
    """A submission's score at one time, and its metrics where they were asked for."""

    at: datetime
    score: float | None
    low: float | None
    high: float | None
    figures: Figures = NOTHING

    @staticmethod
    def now(row: LeaderboardRow, at: datetime) -> Past:
        return Past(at, row.score, row.score_low, row.score_high, Figures.of(row))


class HistoryReader:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def scores(
        self, submission_ids: Sequence[str], competition: str = OPEN
    ) -> dict[str, list[Past]]:
        """Of ninety days, oldest first, without metrics; those who never had a score are left out."""
        since = self._clock.now() - SHOWN
        async with self._database.read() as session:
            rows = await standing_queries.past_scores(session, submission_ids, competition, since)
        found: defaultdict[str, list[Past]] = defaultdict(list)
        for submission_id, at, score, low, high in rows:
            found[submission_id].append(Past(at, score, low, high))
        return dict(found)

    async def of(self, submission_id: str, competition: str = OPEN) -> list[Past]:
        """Of ninety days, oldest first, with metrics."""
        since = self._clock.now() - SHOWN
        async with self._database.read() as session:
            rows = await standing_queries.points(session, submission_id, competition, since)
        return [
            Past(row.at, row.score, row.low, row.high, Figures.model_validate_json(row.figures))
            for row in rows
        ]
