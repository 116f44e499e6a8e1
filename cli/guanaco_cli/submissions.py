"""`guanaco submissions`, `status` and `logs`, and the commands that change what a submission does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import (
    AsJson,
    HubToken,
    SubmissionId,
    Verbose,
    Wait,
    Yes,
    read_hub_token,
)
from guanaco_cli.progress import conclude, explain_failure, watch

if TYPE_CHECKING:
    from guanaco.submissions import Submission, SubmissionEvent

app = typer.Typer()


def _complete_status() -> list[str]:
    from guanaco.submissions import Status

    return [one.value for one in Status]


@app.command(epilog="Example: guanaco submissions --json | jq -r '.[].id'")
def submissions(
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only with this tag; repeat it."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only with this status, such as deployed or failed; repeat it.",
            autocompletion=_complete_status,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List your submissions, newest first."""
    wanted = _statuses(status or ())
    with connect() as client:
        found = client.submissions(tags=tags or ())
    found = [one for one in found if not wanted or one.status in wanted]
    if as_json:
        console.json(found)
        return
    console.table(
        ("id", "status", "name", "repo", "called", "tags", "developer", "submitted"),
        [
            (
                one.id,
                one.status,
                one.name,
                one.repo,
                " ".join("@" + alias.rpartition("@")[2] for alias in one.aliases),
                " ".join(one.tags),
                one.developer,
                words.moment(one.created_at),
            )
            for one in found
        ],
    )
    if not found and wanted:
        console.say(f"No submission of yours is {' or '.join(wanted)}.")
    elif not found and tags:
        console.say(f"No submission of yours has the tag {' and '.join(tags)}.")
    elif not found:
        console.say("No submissions yet: `guanaco submit REPO` enters one.")


def _statuses(named: Sequence[str]) -> list[str]:
    """Return the statuses as they are written; InvalidInput for one that there is not."""
    known = _complete_status()
    found = [one.lower().replace("-", "_") for one in named]
    for one in found:
        if one not in known:
            raise InvalidInput(f"There is no status {one}.", hint=f"They are {', '.join(known)}.")
    return found


@app.command(epilog="Example: guanaco status org-model_v1")
def status(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Show a submission's progress, stage by stage."""
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


@app.command(epilog="Example: guanaco card org-model_v1")
def card(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Show the model card that the repo had when it was checked."""
    with connect() as client:
        found = client.card(submission_id)
    if as_json:
        console.json(found)
        return
    for label, value in (
        ("licence", found.license),
        ("base", ", ".join(found.base_models)),
        ("tags", ", ".join(found.tags)),
    ):
        if value:
            console.line(f"{label:<12} {value}")
    console.line()
    console.line(found.text)
    if found.is_cut:
        console.say("The rest is left out: the README.md is long.")


@app.command(epilog="Example: guanaco logs -f org-model_v1")
def logs(
    submission_id: SubmissionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the pipeline has ended.")
    ] = False,
    verbose: Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show what happened to a submission, event by event."""
    with connect() as client:
        for event in client.events(submission_id, follow=follow):
            if as_json:
                console.json_line(event)
            elif verbose or event.level != "debug":
                console.line(_log_line(event))


def _facts(submission: Submission) -> list[tuple[str, str]]:
    revision = f" at {submission.revision}" if submission.revision else ""
    return [
        ("id", submission.id),
        ("status", submission.status),
        ("no worker", _no_worker(submission)),
        ("not served", _unserved(submission)),
        ("asleep", "the next message wakes it" if submission.is_asleep else ""),
        ("kind", "" if submission.kind == "chat" else submission.kind),
        ("reward model", submission.reward or ""),
        ("name", submission.name),
        ("called", ", ".join(submission.aliases)),
        ("tags", ", ".join(submission.tags)),
        ("repo", submission.repo + revision),
        ("commit", submission.commit or ""),
        ("base", _base(submission)),
        ("merged", submission.merged_because or ""),
        ("model", submission.architecture or ""),
        ("parameters", words.count(submission.parameter_count)),
        ("weights", words.size(submission.weight_bytes)),
        ("dtype", "" if submission.dtype == "auto" else submission.dtype),
        ("quantized", submission.quantization or ""),
        ("submitted", words.moment(submission.created_at)),
        ("redeploy", _rollout(submission)),
    ]


def _no_worker(submission: Submission) -> str:
    if submission.no_worker_since is None:
        return ""
    return f"was heard of since {words.moment(submission.no_worker_since)}: nothing moves on, and its model server may be dead"


def _unserved(submission: Submission) -> str:
    if submission.unserved is None:
        return ""
    return f"since {words.moment(submission.unserved.since)}: {submission.unserved.problem}"


def _rollout(submission: Submission) -> str:
    rollout = submission.rollout
    if rollout is None:
        return ""
    what = f"run {rollout.run}, {rollout.phase}"
    if rollout.is_canary:
        left_s = (rollout.canary_s or 0) - words.since(rollout.shifting_at or rollout.began_at)
        what += f": a canary with {rollout.share:.1%} of new conversations, for {words.seconds(max(0, left_s))} more unless it is worse"
    if rollout.failure is not None:
        serves_on = "" if submission.unserved else ", and the version before serves on"
        what += f"{serves_on}: {rollout.failure.detail}"
    if rollout.because is not None:
        what += f" (begun by the platform. {rollout.because})"
    return what


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
    return f"{words.clock(event.at)} {words.stage_column(event.stage)} {level}{event.message}"


@app.command(epilog="Example: guanaco cancel org-model_v1")
def cancel(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Stop a submission that is in progress, and clean up."""
    with connect() as client:
        _print_status(client.cancel(submission_id), as_json)


@app.command(epilog="Example: guanaco deactivate org-model_v1")
def deactivate(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Stop new conversations with a submission; open ones go on."""
    with connect() as client:
        _print_status(client.deactivate(submission_id), as_json)


@app.command(epilog="Example: guanaco reactivate org-model_v1")
def reactivate(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Open a deactivated submission to new conversations again."""
    with connect() as client:
        _print_status(client.reactivate(submission_id), as_json)


Canary = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Give the new version this share of new conversations first, like 5%; it is stopped when it is worse.",
    ),
]
CanaryMinutes = Annotated[
    float,
    typer.Option(min=0.1, max=43_200, help="How long a canary that is not worse keeps its share."),
]


@app.command(epilog="Example: guanaco redeploy org-model_v1 --canary 5% --canary-minutes 120")
def redeploy(
    submission_id: SubmissionId,
    canary: Canary = None,
    canary_minutes: CanaryMinutes = 60,
    hub_token: HubToken = False,
    wait: Wait = True,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline again, at the same commit, and follow it. What is served goes on until the new version takes its place."""
    share = None if canary is None else _share(canary)
    with connect() as client:
        submission = client.redeploy(
            submission_id,
            canary=share,
            canary_s=canary_minutes * 60,
            hub_token=read_hub_token(hub_token),
        )
        if wait:
            since = submission.updated_at
            submission = watch(client, submission.id, is_verbose=verbose, since=since)
    conclude(submission, as_json=as_json)


@app.command(epilog="Example: guanaco promote org-adapter_v1 --canary 5%")
def promote(
    submission_id: SubmissionId,
    canary: Canary = None,
    canary_minutes: CanaryMinutes = 60,
    hub_token: HubToken = False,
    wait: Wait = True,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Merge a LoRA adapter into its base, and serve it by itself.

    It is served on its base's model server until the merged version has passed its checks. `guanaco stress` says how
    far the two are apart, `guanaco rollback` brings the unmerged version back.
    """
    share = None if canary is None else _share(canary)
    with connect() as client:
        submission = client.promote(
            submission_id,
            canary=share,
            canary_s=canary_minutes * 60,
            hub_token=read_hub_token(hub_token),
        )
        if wait:
            since = submission.updated_at
            submission = watch(client, submission.id, is_verbose=verbose, since=since)
    conclude(submission, as_json=as_json)


@app.command(epilog="Example: guanaco rollback org-model_v1")
def rollback(
    submission_id: SubmissionId,
    wait: Wait = True,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """End a redeploy under way, or bring the version before back.

    The version before is the one that the last redeploy replaced.
    """
    with connect() as client:
        submission = client.rollback(submission_id)
        if wait and submission.is_in_progress:
            since = submission.updated_at
            submission = watch(client, submission.id, is_verbose=verbose, since=since)
    if submission.is_in_progress or not _was_cancelled(submission):
        conclude(submission, as_json=as_json)
    else:
        _print_status(submission, as_json)


def _was_cancelled(submission: Submission) -> bool:
    return submission.rollout is not None and submission.rollout.phase == "cancelled"


def _share(text: str) -> float:
    """Read a share like 5% or 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise typer.BadParameter(f"{text} is no share between 0% and 100%.", param_hint="--canary")
    return share


@app.command(epilog="Example: guanaco teardown org-model_v1 --yes")
def teardown(
    submission_id: SubmissionId,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop a submission's model server; feedback stays readable."""
    console.confirm(f"Tear down {submission_id}?", yes=yes)
    with connect() as client:
        _print_status(client.teardown(submission_id), as_json)


@app.command(epilog="Example: guanaco delete org-model_v1 --yes")
def delete(submission_id: SubmissionId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a failed or cancelled submission that was never live."""
    console.confirm(f"Delete {submission_id} for good?", yes=yes)
    with connect() as client:
        deleted = client.delete(submission_id)
    if as_json:
        console.json(deleted)
    else:
        console.say(f"Deleted {deleted.id}.")


def _print_status(submission: Submission, as_json: bool) -> None:
    if as_json:
        console.json(submission)
    else:
        console.say(f"{submission.id} is {words.spoken(submission.status)}.")
