"""Writes and draws a competition's scores: as figures, as bars, and as lines over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from guanaco.competitions import RankingRule
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_server.leaderboard.ranking.history import PastScore, ScoreHistoryReader
from guanaco_server.web.views import charts
from guanaco_server.web.views.metric_tiles import METRICS, Metric
from guanaco_server.web.words import NOTHING, percent

AVERAGE = 1_000.0
LEAST_REACH = 100.0


@dataclass(frozen=True)
class Scale:
    """The scale from ``middle - reach`` to ``middle + reach``; ``is_votes`` where the score is the thumbs-up ratio itself."""

    is_share: bool
    is_votes: bool
    middle: float
    reach: float

    def show(self, score: float | None) -> str:
        if self.is_share:
            return percent(score if score is None else min(1.0, max(0.0, score)))
        return NOTHING if score is None else f"{score:,.0f}"

    @property
    def name(self) -> str:
        return "thumbs-up ratio" if self.is_votes else "score"

    @property
    def least_change(self) -> float:
        """A smaller one is drawn as small as it is."""
        return 0.05 if self.is_share else LEAST_REACH / 4

    def interval(self, row: LeaderboardRow) -> charts.Interval | None:
        low, at, high = (self._place(end) for end in (row.score_low, row.score, row.score_high))
        return charts.interval(low, at, high)

    def _place(self, score: float | None) -> float | None:
        if score is None:
            return None
        return min(1.0, max(0.0, 0.5 + (score - self.middle) / self.reach / 2))


def scale_of(board: Leaderboard) -> Scale:
    """Return the same for all pages of a board, so that its drawings compare."""
    if board.ranking is not RankingRule.BRADLEY_TERRY:
        is_votes = board.ranking is RankingRule.THUMBS_UP
        return Scale(is_share=True, is_votes=is_votes, middle=0.5, reach=0.5)
    ends = [end for row in board.rows for end in (row.score_low, row.score_high) if end is not None]
    reach = max([LEAST_REACH, *(abs(end - AVERAGE) for end in ends)])
    return Scale(is_share=False, is_votes=False, middle=AVERAGE, reach=reach)


HOURS_SHOWN = timedelta(days=3)  # of a longer time a point a day
POINTS = 60  # as many as a sparkline of 120 pixels can tell apart


async def sparks(
    history: ScoreHistoryReader, board: Leaderboard, rows: Sequence[LeaderboardRow]
) -> dict[str, charts.Spark]:
    """Return the lines of the rows' scores over time, for rows that have one yet."""
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
    """Return a row's past scores until now; empty for one that is not on the board."""
    if row is None:
        return []
    found = await history.of(row.submission_id, board.competition)
    return thinned([*found, PastScore.now(row, board.at)])


@dataclass(frozen=True)
class TrendLine:
    """One figure over time: drawn, or told as a sentence while it has a single point."""

    name: str
    drawing: charts.Trend | None
    sentence: str = ""

    @property
    def title(self) -> str:
        return self.name[0].upper() + self.name[1:]


def score_trend(points: Sequence[PastScore], scale: Scale) -> charts.Trend | None:
    return charts.trend(
        points,
        lambda point: point.score,
        lambda point: (point.low, point.high),
        scale.show,
        top=1.0 if scale.is_share else None,
        is_from_zero=scale.is_share,
    )


def trends_of(points: Sequence[PastScore], scale: Scale) -> list[TrendLine]:
    """Return the score's line and each metric's, of those that have a value; the score or the votes come first."""
    lines = [_metric_line(points, metric) for metric in METRICS]
    count = charts.trend(
        points, lambda point: point.metrics.conversation_count, None, "{:,.0f}".format
    )
    lines.insert(1, TrendLine("conversations", count))
    if not scale.is_votes:
        name = "score, with its 95 % interval"
        now = _sentence(points, lambda point: point.score, scale.show)
        lines.insert(0, TrendLine(name, score_trend(points, scale), now))
    return [line for line in lines if line.drawing or line.sentence]


def _metric_line(points: Sequence[PastScore], metric: Metric) -> TrendLine:
    band = metric.band

    def value(point: PastScore) -> float | None:
        return metric.past(point.metrics)

    drawing = charts.trend(
        points,
        value,
        (lambda point: band(point.metrics)) if band else None,
        metric.show,
        top=1.0 if band else None,
        least=0.1 if metric.is_share else 1.0,
    )
    return TrendLine(metric.title, drawing, _sentence(points, value, metric.show))


def _sentence(
    points: Sequence[PastScore],
    value: Callable[[PastScore], float | None],
    show: Callable[[float], str],
) -> str:
    """Say the only value that there is; nothing where there is none or a line."""
    found = [(point, at) for point in points if (at := value(point)) is not None]
    return charts.reading(found[0], (None, None), show) if len(found) == 1 else ""


def thinned(points: Sequence[PastScore]) -> list[PastScore]:
    """Few enough to be told apart, the newest always among them."""
    if points and points[-1].at - points[0].at > HOURS_SHOWN:
        days = {point.at.date(): point for point in reversed(points)}
        points = [*reversed(days.values()), points[-1]]
    step = -(-len(points) // POINTS) or 1
    return list(points[::-step][::-1])
