"""Reads the figures that alerts and the service level are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco_server.alerts import queries
from guanaco_server.alerts.recording import period_of
from guanaco_server.database.database import Database
from guanaco_server.observability.tally import (
    ANSWERED,
    CACHED_TOKENS,
    FAILED,
    FIRST_TOKEN,
    MEASURES,
    PROMPT_TOKENS,
)
from guanaco_server.statistics.buckets import quantile

HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)

ReadCost = Callable[[datetime, datetime], Awaitable[float]]
"""The cost of all GPUs between two moments."""


@dataclass(frozen=True)
class Traffic:
    """The replies, tokens and faults of a period. ``first_tokens`` are counts by bucket (statistics/buckets.py)."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: tuple[int, ...] = ()

    @property
    def replies(self) -> int:
        return self.answered + self.failed

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.replies if self.replies else None

    @property
    def hit_share(self) -> float | None:
        """The share of the prompts that the prefix caches had."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def first_token_s(self) -> float | None:
        """The 95th percentile of the time to the first token."""
        return quantile(self.first_tokens, 0.95)

    @staticmethod
    def of(counts: Mapping[str, int]) -> Traffic:
        first = {
            int(measure.removeprefix(FIRST_TOKEN)): count
            for measure, count in counts.items()
            if measure.startswith(FIRST_TOKEN)
        }
        return Traffic(
            answered=counts.get(ANSWERED, 0),
            failed=counts.get(FAILED, 0),
            prompt_tokens=counts.get(PROMPT_TOKENS, 0),
            cached_tokens=counts.get(CACHED_TOKENS, 0),
            first_tokens=tuple(
                first.get(bucket, 0) for bucket in range(max(first, default=-1) + 1)
            ),
        )


@dataclass(frozen=True)
class ServiceFigures:
    """The last hour beside the same hour of last week, what the day (UTC) has cost, and traffic by the length of a period."""

    hour: Traffic
    week_ago: Traffic
    hour_cost: float
    week_ago_cost: float
    day_cost: float
    recent: Mapping[timedelta, Traffic]


class FigureReader:
    """Reads whole periods of five minutes, the present one too: an hour is 60 to 65 minutes."""

    def __init__(self, database: Database, read_cost: ReadCost) -> None:
        self._database = database
        self._read_cost = read_cost

    async def read(self, now: datetime, periods: tuple[timedelta, ...]) -> ServiceFigures:
        week_ago = now - WEEK
        hour, before = await self._traffic(now, HOUR), await self._traffic(week_ago, HOUR)
        return ServiceFigures(
            hour=hour,
            week_ago=before,
            hour_cost=await self._read_cost(now - HOUR, now),
            week_ago_cost=await self._read_cost(week_ago - HOUR, week_ago),
            day_cost=await self._read_cost(_midnight(now), now),
            recent=await self.replies(now, periods),
        )

    async def replies(
        self, now: datetime, periods: tuple[timedelta, ...]
    ) -> Mapping[timedelta, Traffic]:
        """Return the replies of each period until now, without their times and tokens."""
        return {period: await self._traffic(now, period, (ANSWERED, FAILED)) for period in periods}

    async def _traffic(
        self, until: datetime, period: timedelta, measures: tuple[str, ...] = MEASURES
    ) -> Traffic:
        async with self._database.read() as session:
            counts = await queries.counts_between(
                session, period_of(until - period), until, measures
            )
        return Traffic.of(counts)


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
