"""`guanaco submissions`, `status`, `logs` and `stress`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId, Verbose
from guanaco_cli.watching import explain_failure

if TYPE_CHECKING:
    from guanaco.submissions import Percentiles, Submission, SubmissionEvent

app = typer.Typer()


@app.command(epilog="Example: guanaco submissions --json | jq -r '.[].id'")
def submissions(as_json: AsJson = False) -> None:
    """Your submissions, newest first."""
    with connect() as client:
        found = client.submissions()
    if as_json:
        console.json(found)
        return
    console.table(
        ("id", "status", "name", "repo", "developer", "submitted"),
        [
            (one.id, one.status, one.name, one.repo, one.developer, words.moment(one.created_at))
            for one in found
        ],
    )
    if not found:
        console.say("None yet: `guanaco submit REPO` enters one.")


@app.command(epilog="Example: guanaco status org-model_v1")
def status(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Where a submission stands, stage by stage."""
    with connect() as client:
        submission = client.submission(submission_id)
    if as_json:
        console.json(submission)
        return
    for label, value in _facts(submission):
        if value:
            console.line(f"{label:<12} {value}")
    if submission.stages:
        console.line()
        _print_stages(submission)
    if submission.failure is not None:
        explain_failure(submission)


@app.command(epilog="Example: guanaco logs -f org-model_v1")
def logs(
    submission_id: SubmissionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the pipeline has ended.")
    ] = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """What happened to a submission, event by event."""
    with connect() as client:
        for event in client.events(submission_id, follow=follow):
            if as_json:
                console.json_line(event)
            elif verbose or event.level != "debug":
                console.line(_log_line(event))


@app.command(epilog="Example: guanaco stress org-model_v1")
def stress(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """What the stress check measured."""
    with connect() as client:
        report = client.stress(submission_id)
    if as_json:
        console.json(report)
        return
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


def _facts(submission: Submission) -> list[tuple[str, str]]:
    revision = f" at {submission.revision}" if submission.revision else ""
    return [
        ("id", submission.id),
        ("status", submission.status),
        ("kind", "" if submission.kind == "chat" else submission.kind),
        ("reward model", submission.reward or ""),
        ("name", submission.name),
        ("repo", submission.repo + revision),
        ("commit", submission.commit or ""),
        ("base", _base(submission)),
        ("model", submission.architecture or ""),
        ("parameters", words.count(submission.parameter_count)),
        ("weights", words.size(submission.weight_bytes)),
        ("dtype", "" if submission.dtype == "auto" else submission.dtype),
        ("quantized", submission.quantization or ""),
        ("submitted", words.moment(submission.created_at)),
    ]


def _base(submission: Submission) -> str:
    if submission.base_repo is None:
        return ""
    return f"{submission.base_repo} at {submission.base_commit or 'its main branch'}"


def _print_stages(submission: Submission) -> None:
    rows = [
        (
            run.run,
            run.stage,
            run.outcome or "running",
            words.clock(run.started_at),
            words.seconds(run.duration_s if run.ended_at else words.since(run.started_at)),
            run.attempts,
        )
        for run in submission.stages
    ]
    console.table(("run>", "stage", "outcome", "started", "took>", "attempts>"), rows)


def _log_line(event: SubmissionEvent) -> str:
    level = "" if event.level == "info" else f"{event.level}: "
    return f"{words.clock(event.at)} {event.stage or '':<9} {level}{event.message}"


def _percentiles(name: str, values: Percentiles | None) -> tuple[str, ...]:
    if values is None:
        return (name, "", "", "", "")
    return (
        name,
        *(words.milliseconds(value) for value in (values.p50, values.p95, values.p99, values.max)),
    )
