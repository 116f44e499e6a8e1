"""A stress report's latencies as bars of text: how often each was measured, or its percentiles where a report has no
histogram. What 95 % may take at most is drawn as a line between the bins, or as a mark in the bars."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guanaco.submissions import HistogramBin, Percentiles, StressReport

BAR_CHARS = 50
LABEL_CHARS = 12


@dataclass(frozen=True)
class Line:
    """``is_over`` says on which side of the threshold it is; None for titles, and where there is none."""

    text: str
    is_over: bool | None = None


@dataclass(frozen=True)
class Glyphs:
    block: str
    limit: str
    rule: str


def plot(report: StressReport) -> Iterator[Line]:
    limits = report.thresholds
    yield from _one(
        "time to first token",
        report.ttft_histogram,
        report.ttft_ms,
        limits.ttft_ms if limits else None,
    )
    yield from _one(
        "time per output token",
        report.tpot_histogram,
        report.tpot_ms,
        limits.tpot_ms if limits else None,
    )


def _one(
    title: str,
    bins: Sequence[HistogramBin],
    percentiles: Percentiles | None,
    limit_ms: float | None,
) -> Iterator[Line]:
    if percentiles is None:
        return
    yield Line("")
    allowed = "" if limit_ms is None else f"; 95 % may take up to {_ms(limit_ms)}"
    yield Line(title + allowed)
    if bins:
        yield from _histogram(bins, limit_ms)
    else:
        yield from _bars(percentiles, limit_ms)


def _histogram(bins: Sequence[HistogramBin], limit_ms: float | None) -> Iterator[Line]:
    """From the first bin with a value to the last; a threshold beyond them is a line at the end."""
    glyphs = _glyphs()
    filled = [number for number, one in enumerate(bins) if one.count]
    shown = bins[filled[0] : filled[-1] + 1] if filled else ()
    most = max((one.count for one in shown), default=1)
    is_drawn = limit_ms is None
    for one in shown:
        is_over = None if limit_ms is None else one.upper_ms > limit_ms
        if is_over and not is_drawn:
            yield _rule(limit_ms, glyphs)
            is_drawn = True
        bar = glyphs.block * max(round(one.count / most * BAR_CHARS), 1 if one.count else 0)
        yield Line(f"{'< ' + _ms(one.upper_ms):>{LABEL_CHARS}} {bar} {one.count}", is_over)
    if not is_drawn:
        yield _rule(limit_ms, glyphs)


def _bars(values: Percentiles, limit_ms: float | None) -> Iterator[Line]:
    glyphs = _glyphs()
    full = max(values.max, limit_ms or 0, 1e-9)
    place = None if limit_ms is None else min(int(limit_ms / full * BAR_CHARS), BAR_CHARS - 1)
    for name, value in (
        ("p50", values.p50),
        ("p95", values.p95),
        ("p99", values.p99),
        ("max", values.max),
    ):
        bar = list((glyphs.block * round(value / full * BAR_CHARS)).ljust(BAR_CHARS))
        if place is not None:
            bar[place] = glyphs.limit
        is_over = None if limit_ms is None else value > limit_ms
        yield Line(f"{name:>{LABEL_CHARS}} {''.join(bar)} {_ms(value)}", is_over)


def _rule(limit_ms: float | None, glyphs: Glyphs) -> Line:
    label = _ms(limit_ms or 0)
    return Line(f"{label:>{LABEL_CHARS}} {glyphs.rule * BAR_CHARS} allowed")


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.3g} ms"


def _glyphs() -> Glyphs:
    """What the output's encoding has."""
    try:
        "█┃─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Glyphs("#", "|", "-")
    return Glyphs("█", "┃", "─")
