"""How each submission's figures went: an hour's last ones for three days, a day's for good."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from guanaco.competitions import OPEN
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_server.background import Background
from guanaco_server.clock import Clock
from guanaco_server.database.database import Database
from guanaco_server.web import queries

HOUR, DAY = "%Y-%m-%dT%H", "%Y-%m-%d"
HOUR_CHARS = len("2026-01-01T07")
HOURS_KEPT = timedelta(days=3)
SHOWN = timedelta(days=90)
POINTS = 60  # as many as a sparkline of 120 pixels can tell apart
INTERVAL_S = 300

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """A submission's figures at one time, as the leaderboard showed them."""

    at: datetime
    score: float | None
    low: float | None
    high: float | None
    conversations: int
    mean_length: float | None


class ScoreHistory:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def record(self, competition: str, board: Leaderboard) -> None:
        """Repeating it within an hour replaces that hour's figures."""
        now = self._clock.now()
        rows = [
            {
                "competition": competition,
                "submission_id": row.submission_id,
                "slot": now.strftime(form),
                "at": now,
                **_figures(row),
            }
            for row in board.rows
            for form in (HOUR, DAY)
        ]
        async with self._database.write() as session:
            if rows:
                await queries.put_scores(session, rows)
            await queries.remove_hours_before(session, now - HOURS_KEPT, HOUR_CHARS)

    async def of(
        self, submission_ids: Sequence[str], competition: str = OPEN
    ) -> dict[str, list[Point]]:
        """Oldest first: hours where they reach back to the beginning, else days."""
        since = self._clock.now() - SHOWN
        async with self._database.read() as session:
            rows = await queries.scores_of(session, competition, submission_ids, since)
        found: defaultdict[str, list[tuple[str, Point]]] = defaultdict(list)
        for submission_id, slot, *figures in rows:
            found[submission_id].append((slot, Point(*figures)))
        return {submission_id: _thinned(points) for submission_id, points in found.items()}


class HistoryKeeper:
    """Writes the leaderboards down again and again; one process of all does it."""

    def __init__(
        self,
        history: ScoreHistory,
        competitions: Callable[[], Awaitable[Sequence[str]]],
        board: Callable[[str], Awaitable[Leaderboard]],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._history = history
        self._competitions = competitions
        self._board = board
        self._interval_s = interval_s
        self._background = Background("score history")

    async def start(self) -> None:
        self._background.start(self._keep())

    async def stop(self) -> None:
        await self._background.stop()

    async def note(self) -> None:
        """One round."""
        for competition in await self._competitions():
            await self._history.record(competition, await self._board(competition))

    async def _keep(self) -> None:
        while True:
            try:
                await self.note()
            except (DBAPIError, OSError) as error:
                logger.warning("the scores were not written down: %s", error)
            await asyncio.sleep(self._interval_s)


def _figures(row: LeaderboardRow) -> dict[str, float | None]:
    return {
        "score": row.thumbs_up_ratio,
        "low": row.interval_low,
        "high": row.interval_high,
        "conversations": row.conversation_count,
        "mean_length": row.mean_conversation_length,
    }


def _thinned(slots: Sequence[tuple[str, Point]]) -> list[Point]:
    hours = [point for slot, point in slots if len(slot) == HOUR_CHARS]
    days = [point for slot, point in slots if len(slot) != HOUR_CHARS]
    is_young = not days or slots[-1][1].at - days[0].at < HOURS_KEPT
    chosen = hours if is_young and hours else days
    step = -(-len(chosen) // POINTS) or 1
    return chosen[::-step][::-1]  # the newest is always among them
