"""`guanaco evaluate`: all figures of one submission, as its developer may see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.client import Client
    from guanaco.costs import SubmissionCost
    from guanaco.estimates import Estimate
    from guanaco.leaderboard import LeaderboardRow, SubmissionMetrics
    from guanaco.submissions import StressReport, Submission

app = typer.Typer()


@dataclass(frozen=True)
class Figures:
    """``standing`` is its row of the open competition's leaderboard; ``stress`` is None before the check ran."""

    submission: Submission
    metrics: SubmissionMetrics
    standing: LeaderboardRow | None
    stress: StressReport | None
    cost: SubmissionCost


@app.command(epilog="Example: guanaco evaluate org-model_v1 --json")
def evaluate(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Show a submission's rank, votes, speed and cost."""
    with connect() as client:
        figures = read_figures(client, submission_id)
    if as_json:
        console.json(_document(figures))
    else:
        print_figures(figures)


def read_figures(client: Client, submission_id: str) -> Figures:
    from guanaco.errors import ReportNotFound

    submission = client.submission(submission_id)
    metrics = client.metrics(submission.id)
    rows = client.leaderboard().rows
    try:
        stress = client.stress(submission.id)
    except ReportNotFound:
        stress = None
    standing = next((row for row in rows if row.submission_id == submission.id), None)
    return Figures(submission, metrics, standing, stress, client.cost(submission.id))


def print_figures(figures: Figures) -> None:
    submission = figures.submission
    console.line(
        f"{submission.id} is {words.spoken(submission.status)}: {submission.name}, {submission.repo}"
    )
    rows = [*_votes(figures), *_behaviour(figures.metrics), *_speed(figures), *_cost(figures.cost)]
    console.table(("", "value>", "95 % interval>"), [row for row in rows if row[1]])
    if not figures.metrics.feedback_count:
        console.say("Nobody has rated it yet.")


Row = tuple[str, str, str]


def _votes(figures: Figures) -> list[Row]:
    found, standing = figures.metrics, figures.standing
    rank = "" if standing is None or standing.rank is None else str(standing.rank)
    interval = ""
    if found.interval_low is not None and found.interval_high is not None:
        interval = f"{found.interval_low:.0%} to {found.interval_high:.0%}"
    return [
        ("rank in the open competition", rank, ""),
        ("thumbs up", words.percent(found.thumbs_up_ratio), interval),
        ("users who voted", f"{found.thumbs_up + found.thumbs_down:,}", ""),
        ("ratings", f"{found.feedback_count:,}", ""),
        ("conversations", f"{found.conversation_count:,}", ""),
    ]


def _behaviour(found: SubmissionMetrics) -> list[Row]:
    return [
        _estimate("messages in a conversation, mean", found.conversation_length, "{:.1f}"),
        _estimate("messages in a conversation, median", found.median_conversation_length, "{:.0f}"),
        _estimate("users back the next day", found.retention, "{:.0%}"),
        _estimate("replies regenerated", found.regenerate_rate, "{:.0%}"),
        _estimate("words repeated from reply to reply", found.repetition, "{:.0%}"),
    ]


def _speed(figures: Figures) -> list[Row]:
    found, report = figures.metrics, figures.stress
    verdict = "" if report is None else ("passed" if report.is_passed else "failed")
    return [
        _estimate("to the first token, median", found.ttft_ms_median, "{:,.0f} ms"),
        _estimate("to the first token, 95th percentile", found.ttft_ms_p95, "{:,.0f} ms"),
        _estimate("to the whole reply, median", found.reply_ms_median, "{:,.0f} ms"),
        _estimate("to the whole reply, 95th percentile", found.reply_ms_p95, "{:,.0f} ms"),
        ("stress check", verdict, ""),
    ]


def _cost(cost: SubmissionCost) -> list[Row]:
    if not cost.gpu_hours:
        return []
    return [
        ("GPU hours", f"{cost.gpu_hours:,.1f}", ""),
        ("cost", f"{cost.cost:,.2f} {cost.currency}", ""),
    ]


def _estimate(label: str, found: Estimate | None, form: str) -> Row:
    if found is None:
        return (label, "", "")
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f"{form.format(found.low)} to {form.format(found.high)}"
    return (label, form.format(found.value), interval)


def _document(figures: Figures) -> dict[str, Any]:
    return {
        "submission": figures.submission.model_dump(mode="json"),
        "metrics": figures.metrics.model_dump(mode="json"),
        "standing": figures.standing.model_dump(mode="json") if figures.standing else None,
        "stress": figures.stress.model_dump(mode="json") if figures.stress else None,
        "cost": figures.cost.model_dump(mode="json"),
    }
