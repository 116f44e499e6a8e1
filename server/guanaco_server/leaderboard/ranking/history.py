"""Reads how the scores and metrics of submissions developed, for the charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco.competitions import OPEN
from guanaco.leaderboard import LeaderboardRow
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.ranking import queries
from guanaco_server.leaderboard.ranking.metrics import MetricValues
from guanaco_server.runtime.clock import Clock

SHOWN = timedelta(days=90)
NO_VALUES = MetricValues()


@dataclass(frozen=True, slots=True)
class PastScore:
    """A submission's score at one time, and its metrics where they were asked for."""

    at: datetime
    score: float | None
    low: float | None
    high: float | None
    metrics: MetricValues = NO_VALUES

    @staticmethod
    def now(row: LeaderboardRow, at: datetime) -> PastScore:
        return PastScore(at, row.score, row.score_low, row.score_high, MetricValues.of(row))


class ScoreHistoryReader:
    """Reads ninety days, oldest first."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def scores(
        self, submission_ids: Sequence[str], competition: str = OPEN
    ) -> dict[str, list[PastScore]]:
        """Return the scores, without metrics. A submission that never had a score is absent."""
        since = self._clock.now() - SHOWN
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.past_scores(session, submission_ids, competition, since)
        found: defaultdict[str, list[PastScore]] = defaultdict(list)
        for submission_id, at, score, low, high in rows:
            found[submission_id].append(PastScore(at, score, low, high))
        return dict(found)

    async def of(self, submission_id: str, competition: str = OPEN) -> list[PastScore]:
        """Return one submission's scores with its metrics."""
        since = self._clock.now() - SHOWN
        async with self._database.read(may_be_stale=True) as session:
            rows = await queries.points(session, submission_id, competition, since)
        return [
            PastScore(
                row.at, row.score, row.low, row.high, MetricValues.model_validate_json(row.figures)
            )
            for row in rows
        ]
