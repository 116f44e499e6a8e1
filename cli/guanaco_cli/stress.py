"""`guanaco stress`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from guanaco_cli import stress_plot, words
from guanaco_cli.connection import connect
from guanaco_cli.console import GREEN, RED, console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.submissions import Percentiles, StressReport

app = typer.Typer()


@app.command(epilog="Example: guanaco stress org-model_v1")
def stress(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """What the stress check measured, with a plot of its latencies."""
    with connect() as client:
        report = client.stress(submission_id)
    if as_json:
        console.json(report)
    else:
        print_report(report)


def print_report(report: StressReport) -> None:
    verdict = "passed" if report.is_passed else "failed"
    console.line(
        f"{verdict}: {report.requests} requests at {report.offered_rate:g}/s in {words.seconds(report.duration_s)},"
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
    for line in stress_plot.plot(report):
        style = {True: RED, False: GREEN, None: None}[line.is_over]
        console.line(line.text, style=style)


def _percentiles(name: str, values: Percentiles | None) -> tuple[str, ...]:
    if values is None:
        return (name, "", "", "", "")
    return (
        name,
        *(words.milliseconds(value) for value in (values.p50, values.p95, values.p99, values.max)),
    )
