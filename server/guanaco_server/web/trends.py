"""The lines over time: which points they go through, and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_server.leaderboard.ranking.history import PastScore, ScoreHistoryReader
from guanaco_server.web import charts
from guanaco_server.web.metric_tiles import METRICS, Metric
from guanaco_server.web.scales import Scale, scale_of

HOURS_SHOWN = timedelta(days=3)  # of a longer time a point a day
POINTS = 60  # as many as a sparkline of 120 pixels can tell apart


async def sparks(
    history: ScoreHistoryReader, board: Leaderboard, rows: Sequence[LeaderboardRow]
) -> dict[str, charts.Spark]:
    """How the score of each row went, of those that have a line yet."""
    found = await history.scores([row.submission_id for row in rows], board.competition)
    least = scale_of(board).least_change
    lines = {
        row.submission_id: charts.sparkline(
            thinned([*found.get(row.submission_id, ()), PastScore.now(row, board.at)]), least
        )
        for row in rows
    }
    return {submission_id: line for submission_id, line in lines.items() if line is not None}


async def past_of(
    history: ScoreHistoryReader, board: Leaderboard, row: LeaderboardRow | None
) -> list[PastScore]:
    """Until now; empty for what is not on the board."""
    if row is None:
        return []
    found = await history.of(row.submission_id, board.competition)
    return thinned([*found, PastScore.now(row, board.at)])


def score_trend(points: Sequence[PastScore], scale: Scale) -> charts.Trend | None:
    return charts.trend(
        points,
        lambda point: point.score,
        lambda point: (point.low, point.high),
        scale.show,
        top=1.0 if scale.is_share else None,
        is_from_zero=scale.is_share,
    )


def trends_of(points: Sequence[PastScore], scale: Scale) -> list[tuple[str, charts.Trend]]:
    """The score's and each metric's, of those that have a line yet."""
    lines = [(metric.title, _metric_trend(points, metric)) for metric in METRICS]
    count = charts.trend(
        points, lambda point: point.metrics.conversation_count, None, "{:,.0f}".format
    )
    lines.insert(1, ("conversations", count))
    if not scale.is_votes:
        lines.insert(0, ("score, with its 95 % interval", score_trend(points, scale)))
    return [(name[0].upper() + name[1:], line) for name, line in lines if line is not None]


def _metric_trend(points: Sequence[PastScore], metric: Metric) -> charts.Trend | None:
    band = metric.band
    return charts.trend(
        points,
        lambda point: metric.past(point.metrics),
        (lambda point: band(point.metrics)) if band else None,
        metric.show,
        top=1.0 if band else None,
        least=0.1 if metric.is_share else 1.0,
    )


def thinned(points: Sequence[PastScore]) -> list[PastScore]:
    """Few enough to be told apart, the newest always among them."""
    if points and points[-1].at - points[0].at > HOURS_SHOWN:
        days = {point.at.date(): point for point in reversed(points)}
        points = [*reversed(days.values()), points[-1]]
    step = -(-len(points) // POINTS) or 1
    return list(points[::-step][::-1])
