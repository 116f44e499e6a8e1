"""Following a submission through the pipeline, and saying how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from guanaco_cli.console import GREEN, console
from guanaco_cli.progress import stage_progress

if TYPE_CHECKING:
    from datetime import datetime

    from guanaco.client import Client
    from guanaco.submissions import Submission, SubmissionEvent


def watch(
    client: Client, submission_id: str, *, is_verbose: bool = False, since: datetime | None = None
) -> Submission:
    """Show the stages until the submission is no longer in progress. Ctrl-C leaves the remote work running."""
    try:
        with stage_progress(is_verbose=is_verbose) as progress:

            def show(event: SubmissionEvent) -> None:
                if since is None or event.at >= since:
                    progress.show(event)

            return client.wait(submission_id, show)
    except KeyboardInterrupt:
        console.say(f"It goes on without you. `guanaco logs -f {submission_id}` follows it.")
        raise typer.Exit(130) from None


def conclude(submission: Submission, *, as_json: bool) -> None:
    """Print the submission (its id alone, or JSON); exit status 1 if it has failed or was cancelled."""
    if as_json:
        console.json(submission)
    else:
        console.line(submission.id)
    _say_outcome(submission)


def _say_outcome(submission: Submission) -> None:
    from guanaco.submissions import Status

    if submission.failure is not None:
        explain_failure(submission)
    elif submission.status is Status.CANCELLED:
        console.error(f"{submission.id} was cancelled.")
    elif submission.status.is_unknown:
        console.error(
            f"{submission.id} is {submission.status}, which this version of guanaco does not know.",
            "Upgrade it: pip install --upgrade guanaco",
        )
    elif submission.status.is_in_progress:
        console.say(f"It is {submission.status}. `guanaco logs -f {submission.id}` follows it.")
        return
    else:
        console.say(f"{submission.id} is {submission.status}.", style=GREEN)
        return
    raise typer.Exit(1)


def explain_failure(submission: Submission) -> None:
    """Why it failed, and who can do something about it."""
    failure = submission.failure
    assert failure is not None
    where = f" in stage {failure.stage}" if failure.stage else ""
    console.error(f"{submission.id} failed{where}: {failure.detail}", failure.hint)
    console.say(f"blame: {failure.blame} ({failure.code})")
