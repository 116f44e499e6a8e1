"""`guanaco cancel`, `deactivate`, `reactivate`, `redeploy` and `teardown`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId, Verbose, Wait
from guanaco_cli.watching import conclude, watch

if TYPE_CHECKING:
    from guanaco.submissions import Submission

app = typer.Typer()


@app.command(epilog="Example: guanaco cancel org-model_v1")
def cancel(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Stop a submission that is in progress, and clean up."""
    with connect() as client:
        _print(client.cancel(submission_id), as_json)


@app.command(epilog="Example: guanaco deactivate org-model_v1")
def deactivate(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Take no new conversations; the open ones go on."""
    with connect() as client:
        _print(client.deactivate(submission_id), as_json)


@app.command(epilog="Example: guanaco reactivate org-model_v1")
def reactivate(submission_id: SubmissionId, as_json: AsJson = False) -> None:
    """Take new conversations again."""
    with connect() as client:
        _print(client.reactivate(submission_id), as_json)


@app.command(epilog="Example: guanaco redeploy org-model_v1")
def redeploy(
    submission_id: SubmissionId,
    wait: Wait = True,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline again, at the same commit, and follow it."""
    with connect() as client:
        submission = client.redeploy(submission_id)
        if wait:
            since = submission.updated_at
            submission = watch(client, submission_id, is_verbose=verbose, since=since)
    conclude(submission, as_json=as_json)


@app.command(epilog="Example: guanaco teardown org-model_v1 --yes")
def teardown(
    submission_id: SubmissionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop its model server; its feedback stays readable."""
    if console.is_interactive and not yes:
        typer.confirm(f"Tear down {submission_id}?", abort=True, err=True)
    with connect() as client:
        _print(client.teardown(submission_id), as_json)


def _print(submission: Submission, as_json: bool) -> None:
    if as_json:
        console.json(submission)
    else:
        console.say(f"{submission.id} is {submission.status}.")
