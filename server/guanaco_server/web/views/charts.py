"""Computes where the lines of the drawings go; templates/charts.html makes SVG of the numbers.

No style attribute is in any of it (the Content-Security-Policy forbids them): positions are SVG's own
attributes, and colours are classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from guanaco.submissions import HistogramBin, Percentiles
from guanaco_server.leaderboard.ranking.history import PastScore
from guanaco_server.web.words import moment

SPARK_W, SPARK_H = 120, 28
TREND_W, TREND_H = 400, 150
BARS_W, BARS_H = 560, 170
MARGIN = 4
LEFT, BOTTOM, TOP = 48, 22, 10


@dataclass(frozen=True)
class Interval:
    """A share with its interval, in percent of the width."""

    low: float
    high: float
    at: float


@dataclass(frozen=True)
class Spark:
    width: int
    height: int
    line: str
    end_x: float
    end_y: float


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Point:
    """One point of a line, and from ``left`` on, ``width`` wide, where the pointer means it."""

    x: float
    y: float
    left: float
    width: float
    label: str
    at: datetime


@dataclass(frozen=True)
class Trend:
    """A line over time, with a band around it where there is one."""

    width: int
    height: int
    left: float
    bottom: float
    line: str
    band: str
    y_ticks: Sequence[Tick]
    x_ticks: Sequence[Tick]
    end_x: float
    end_y: float
    points: Sequence[Point]


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class Bars:
    width: int
    height: int
    left: float
    bottom: float
    bars: Sequence[Bar]
    marks: Sequence[Tick]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]


def interval(low: float | None, at: float | None, high: float | None) -> Interval | None:
    if low is None or at is None or high is None:
        return None
    return Interval(round(low * 100, 1), round(high * 100, 1), round(at * 100, 1))


def sparkline(points: Sequence[PastScore], least: float = 0.05) -> Spark | None:
    """The score; Return None if there are fewer than two points. A change under ``least`` is drawn as small as it is."""
    values = [p.score for p in points if p.score is not None]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    spread = max(high - low, least)
    step = (SPARK_W - 2 * MARGIN) / (len(values) - 1)
    middle = (low + high) / 2
    places = [
        (
            round(MARGIN + place * step, 1),
            round(SPARK_H / 2 - (value - middle) / spread * (SPARK_H - 2 * MARGIN), 1),
        )
        for place, value in enumerate(values)
    ]
    return Spark(SPARK_W, SPARK_H, _path(places), *places[-1])


class HasTime(Protocol):
    """A thing that has its place on an axis of time."""

    @property
    def at(self) -> datetime: ...


D = TypeVar("D", bound=HasTime)


def trend(
    points: Sequence[D],
    value: Callable[[D], float | None],
    band: Callable[[D], tuple[float | None, float | None]] | None,
    label: Callable[[float], str],
    top: float | None = None,
    *,
    is_from_zero: bool = True,
    least: float = 1.0,
    is_whole: bool = False,
) -> Trend | None:
    """One figure over time; ``top`` fixes the upper end of the axis, which is ``least`` where all is 0.

    Return None if there are fewer than two points.
    """
    found = [(point, at) for point in points if (at := value(point)) is not None]
    if len(found) < 2:
        return None
    edges = [band(point) if band else (None, None) for point, _ in found]
    highest = top or max([at for _, at in found] + [high for _, high in edges if high is not None])
    lowest = 0.0
    if not is_from_zero:
        lowest = min([at for _, at in found] + [low for low, _ in edges if low is not None])
    above = highest if highest > lowest else lowest + least
    ticks = _ticks(above, whole=is_whole, bottom=lowest)
    scale_top, scale_bottom = top or ticks[-1], ticks[0]
    begin, end = found[0][0].at.timestamp(), found[-1][0].at.timestamp()

    def x(moment: datetime) -> float:
        share = (moment.timestamp() - begin) / (end - begin or 1)
        return round(LEFT + share * (TREND_W - LEFT - MARGIN * 2), 1)

    def y(at: float) -> float:
        share = (at - scale_bottom) / (scale_top - scale_bottom)
        return round(TREND_H - BOTTOM - share * (TREND_H - BOTTOM - TOP), 1)

    places = [(x(point.at), y(at)) for point, at in found]
    upper = [(x(p.at), y(high)) for (p, _), (_, high) in zip(found, edges, strict=True) if high is not None]  # fmt: skip
    lower = [(x(p.at), y(low)) for (p, _), (low, _) in zip(found, edges, strict=True) if low is not None]  # fmt: skip
    return Trend(
        width=TREND_W,
        height=TREND_H,
        left=LEFT,
        bottom=TREND_H - BOTTOM,
        line=_path(places),
        band=_path(upper + lower[::-1]) + "Z" if upper and lower else "",
        y_ticks=[Tick(y(at), label(at)) for at in ticks if at <= scale_top],
        x_ticks=_time_ticks(found[0][0].at, found[-1][0].at, x),
        end_x=places[-1][0],
        end_y=places[-1][1],
        points=_points(
            places,
            [reading(*item, label) for item in zip(found, edges, strict=True)],
            [point.at for point, _ in found],
        ),
    )


def reading(
    found: tuple[HasTime, float],
    edges: tuple[float | None, float | None],
    label: Callable[[float], str],
) -> str:
    """``3 Mar 2026, 09:00 UTC: 81 %, 77 % to 85 %``."""
    (point, at), (low, high) = found, edges
    certainty = f", {label(low)} to {label(high)}" if low is not None and high is not None else ""
    return f"{moment(point.at)}: {label(at)}{certainty}"


def _points(
    places: Sequence[tuple[float, float]], labels: Sequence[str], times: Sequence[datetime]
) -> list[Point]:
    """Each point has the strip that ends half way to its neighbours; of points at one place the last."""
    labelled = zip(places, labels, times, strict=True)
    kept = {x: (y, label, at) for (x, y), label, at in labelled}
    middles = [(one + other) / 2 for one, other in itertools.pairwise(kept)]
    strips = itertools.pairwise([places[0][0], *middles, places[-1][0]])
    return [
        Point(x, y, round(left, 1), round(right - left, 1), label, at)
        for (x, (y, label, at)), (left, right) in zip(kept.items(), strips, strict=True)
    ]


def histogram(bins: Sequence[HistogramBin], percentiles: Percentiles | None) -> Bars | None:
    """Return the distribution, with p50, p95 and p99 marked; None without bins."""
    if len(bins) < 2:
        return None
    edges = [item.upper_ms for item in bins]
    width_ms = edges[1] - edges[0]
    begin, end = edges[0], edges[-1]
    tallest = max(item.count for item in bins)
    ticks = _ticks(tallest, whole=True)

    def x(at: float) -> float:
        share = (min(max(at, begin), end) - begin) / (end - begin)
        return round(LEFT + share * (BARS_W - LEFT - MARGIN * 2), 1)

    def y(count: float) -> float:
        return round(BARS_H - BOTTOM - count / ticks[-1] * (BARS_H - BOTTOM - 2 * TOP), 1)

    bars = [
        Bar(
            x(item.upper_ms - width_ms) + 1,
            y(item.count),
            round(max(1.0, x(item.upper_ms) - x(item.upper_ms - width_ms) - 2), 1),
            round(BARS_H - BOTTOM - y(item.count), 1),
            f"{item.upper_ms - width_ms:g} to {item.upper_ms:g} ms: {item.count} request{'' if item.count == 1 else 's'}",
        )
        for item in bins[1:]
        if item.count
    ]
    marks = []
    if percentiles is not None:
        found = (("p50", percentiles.p50), ("p95", percentiles.p95), ("p99", percentiles.p99))
        marks = _merge_overlapping([Tick(x(at), name) for name, at in found])
    every = max(1, len(edges) // 6)
    return Bars(
        width=BARS_W,
        height=BARS_H,
        left=LEFT,
        bottom=BARS_H - BOTTOM,
        bars=bars,
        marks=marks,
        x_ticks=[Tick(x(at), f"{at:,g}") for at in edges[::every]],
        y_ticks=[Tick(y(at), f"{at:g}") for at in ticks],
    )


def _merge_overlapping(marks: Sequence[Tick], least: float = 30) -> list[Tick]:
    """Marks that would lie on each other become one, with both names."""
    kept: list[Tick] = []
    for mark in marks:
        if kept and mark.at - kept[-1].at < least:
            kept[-1] = Tick(mark.at, f"{kept[-1].label}, {mark.label}")
        else:
            kept.append(mark)
    return kept


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""


def _ticks(top: float, whole: bool = False, count: int = 4, bottom: float = 0.0) -> list[float]:
    """Return round values from at most ``bottom`` to at least ``top``."""
    rough = (top - bottom) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(round(bottom / step, 9)), math.ceil(round(top / step, 9))
    return [round(step * place, 10) for place in range(first, last + 1)]


def _time_ticks(begin: datetime, end: datetime, x: Callable[[datetime], float]) -> list[Tick]:
    is_short = (end - begin).days < 2
    form = "%H:%M" if is_short else "%d %b"
    moments = [begin + (end - begin) * share / 3 for share in range(4)]
    return [Tick(x(moment), moment.strftime(form).lstrip("0")) for moment in moments]
