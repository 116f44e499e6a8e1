"""Draws what the platform did over time, for its operator: replies, ratings, errors, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from guanaco_server.alerts.service import AlertService
from guanaco_server.costs.service import CostService
from guanaco_server.web.views import charts
from guanaco_server.web.views.trends import TrendLine

Period = Literal["day", "month"]
SLOTS: dict[Period, tuple[int, timedelta]] = {
    "day": (24, timedelta(hours=1)),
    "month": (30, timedelta(days=1)),
}


@dataclass(frozen=True)
class ActivityPoint:
    """Counts of the hour or day that begins ``at``."""

    at: datetime
    turns: int
    ratings: int
    errors: int
    cost: float


@dataclass(frozen=True)
class ActivityView:
    """``per`` is a point's length of time in words; the totals are the period's."""

    per: str
    lines: Sequence[TrendLine]
    turns: int
    ratings: int
    errors: int
    cost: float

    @property
    def error_share(self) -> float | None:
        ended = self.turns + self.errors
        return self.errors / ended if ended else None


async def activity_view(
    alerts: AlertService, costs: CostService, now: datetime, period: Period
) -> ActivityView:
    edges = edges_until(now, period)
    counts = await alerts.activity(edges)
    spent = await costs.spent_by_slot(edges)
    points = [
        ActivityPoint(at, one.turns, one.ratings, one.errors, cost)
        for at, one, cost in zip(edges, counts, spent, strict=False)
    ]
    per = "hour" if period == "day" else "day"
    return ActivityView(
        per=per,
        lines=[
            _line(f"replies per {per}", points, lambda point: point.turns),
            _line(f"ratings per {per}", points, lambda point: point.ratings),
            _line(f"errors per {per}", points, lambda point: point.errors),
            _line(f"cost per {per}", points, lambda point: point.cost, is_money=True),
        ],
        turns=sum(point.turns for point in points),
        ratings=sum(point.ratings for point in points),
        errors=sum(point.errors for point in points),
        cost=sum(spent),
    )


def edges_until(now: datetime, period: Period) -> list[datetime]:
    """Return where whole hours or days (UTC) begin and end; the last slot is the present one."""
    count, length = SLOTS[period]
    begin = now.replace(minute=0, second=0, microsecond=0)
    if period == "month":
        begin = begin.replace(hour=0)
    return [begin + length * (slot - count + 1) for slot in range(count + 1)]


def _line(
    name: str,
    points: Sequence[ActivityPoint],
    value: Callable[[ActivityPoint], float],
    *,
    is_money: bool = False,
) -> TrendLine:
    show = "{:,.2f}".format if is_money else "{:,.0f}".format
    return TrendLine(name, charts.trend(points, value, None, show, is_whole=not is_money))
