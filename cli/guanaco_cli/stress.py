"""`guanaco stress`: the stress check's figures, and its latencies as bars of text with the threshold drawn in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import GREEN, RED, console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.submissions import HistogramBin, Percentiles, StressReport

app = typer.Typer()


@app.command(epilog="Example: guanaco stress org-model_v1")
def stress(
    submission_id: SubmissionId,
    with_requests: Annotated[
        bool, typer.Option("--requests", help="Also list each request of the verdict's load.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the stress check's measurements, with a latency plot."""
    with connect() as client:
        report = client.stress(submission_id)
    if as_json:
        console.json(report)
        return
    print_report(report)
    if with_requests:
        print_requests(report)


def print_report(report: StressReport) -> None:
    verdict = "passed" if report.is_passed else "failed"
    sure = f" ({report.confidence:.0%} sure)" if report.confidence is not None else ""
    console.line(
        f"{verdict}{sure}: {report.requests} requests at {report.offered_rate:g}/s in {words.seconds(report.duration_s)},"
        f" {report.errors} errors, {report.tokens_per_second:.1f} tokens/s"
    )
    console.table(
        ("", "p50>", "p95>", "p99>", "max>"),
        [
            _percentiles("time to first token", report.ttft_ms),
            _percentiles("time per output token", report.tpot_ms),
            _percentiles("whole reply", report.e2e_ms),
        ],
    )
    for reason in report.reasons:
        console.line(reason)
    _print_sharing(report)
    if report.loads:
        _print_loads(report)
    for line in plot(report):
        style = {True: RED, False: GREEN, None: None}[line.is_over]
        console.line(line.text, style=style)


def _print_sharing(report: StressReport) -> None:
    if report.reused is not None:
        whose = report.reused.submission_id or "another developer's submission"
        console.line(
            f"The load is that of {whose} on the same model server, {words.moment(report.reused.at)};"
            f" {report.reused.own_requests} requests of its own kept to every limit."
        )
    if report.merged_because is not None:
        console.line(f"The adapter is merged into its base. {report.merged_because}")
    if report.divergence is not None:
        found = report.divergence
        console.line(
            f"Merged and unmerged, the log-probabilities of {found.tokens} tokens differ by {found.mean:.2g} on average,"
            f" {found.largest:.2g} at most; perplexity {found.merged_perplexity:.4g} merged, {found.unmerged_perplexity:.4g} unmerged."
        )
    if report.not_compared is not None:
        console.line(report.not_compared)
    if report.beside is not None and report.beside.servers:
        console.line(
            f"{report.beside.servers} other model servers of the machine answered requests meanwhile,"
            " so the load was not raised beyond that of the verdict."
        )
    if report.beside is not None and report.beside.submissions:
        console.line(
            f"{report.beside.submissions} other submissions shared the model server;"
            f" beside the check {report.beside.mean:.1f} of their sequences were under way, {report.beside.most} at most."
        )


def print_requests(report: StressReport) -> None:
    if not report.trace:
        console.line("The report of an older check does not list its requests.")
        return
    rows = [
        (
            f"{one.due_s:.2f} s",
            *(
                "" if value is None else words.milliseconds(value)
                for value in (one.ttft_ms, one.tpot_ms, one.e2e_ms)
            ),
            str(one.output_tokens),
            one.error or "",
        )
        for one in report.trace
    ]
    header = ("due>", "first token>", "per token>", "whole reply>", "tokens>", "error")
    console.table(header, rows)


def _print_loads(report: StressReport) -> None:
    console.table(
        ("requests a second>", "sent>", "errors>", "first token p95>", "whole reply p95>", "borne"),
        [
            (
                f"{load.rate:.3g}",
                str(load.requests),
                str(load.errors),
                words.milliseconds(load.ttft_ms.p95) if load.ttft_ms else "",
                words.milliseconds(load.e2e_ms.p95) if load.e2e_ms else "",
                "yes" if load.is_borne else f"no: {load.why}",
            )
            for load in report.loads
        ],
    )
    if report.capacity is not None:
        each = report.candidates
        console.line(
            f"It bore {report.capacity} replies under way at once."
            if each == 1
            else f"It bore {report.capacity} sequences under way at once; each reply has {each}, one for each candidate."
        )


def _percentiles(name: str, values: Percentiles | None) -> tuple[str, ...]:
    if values is None:
        return (name, "", "", "", "")
    return (
        name,
        *(words.milliseconds(value) for value in (values.p50, values.p95, values.p99, values.max)),
    )


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
    """Draw the bins that have a value; a threshold beyond them is a line at the end."""
    glyphs = _glyphs()
    shown = [one for one in bins if one.count]
    most = max((one.count for one in shown), default=1)
    is_drawn = limit_ms is None
    for one in shown:
        is_over = None if limit_ms is None else one.upper_ms > limit_ms
        if is_over and not is_drawn:
            yield _rule(limit_ms, glyphs)
            is_drawn = True
        bar = glyphs.block * max(round(one.count / most * BAR_CHARS), 1)
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
    """Choose the characters that the output's encoding has."""
    try:
        "█┃─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Glyphs("#", "|", "-")
    return Glyphs("█", "┃", "─")
