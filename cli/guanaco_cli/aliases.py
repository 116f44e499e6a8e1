"""`guanaco alias`, `guanaco tag` and `guanaco show-prompt`: names of your submissions, and what everybody sees of them."""

from __future__ import annotations

from typing import Annotated

import typer

from guanaco_cli import words
from guanaco_cli.completion import complete_aliases
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

alias_app = typer.Typer(no_args_is_help=True)
app = typer.Typer()


@alias_app.command("set", epilog="Example: guanaco alias set org-model_v2 champion")
def set_alias(
    submission_id: SubmissionId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits and dashes.")],
    as_json: AsJson = False,
) -> None:
    """Call a submission so from now on. Another one of its repo loses the alias at the same moment."""
    with connect() as client:
        alias = client.set_alias(submission_id, name.rpartition("@")[2])
    if as_json:
        console.json(alias)
        return
    console.line(alias.alias)
    console.say(f"It means {alias.submission_id}, wherever a submission's id can stand.")


@alias_app.command("list", epilog="Example: guanaco alias list --json")
def list_aliases(as_json: AsJson = False) -> None:
    """List your aliases, each with the submission that it means."""
    with connect() as client:
        found = client.aliases()
    if as_json:
        console.json(found)
        return
    console.table(
        ("alias", "submission", "developer", "since"),
        [(one.alias, one.submission_id, one.developer, words.moment(one.set_at)) for one in found],
    )
    if not found:
        console.say("No aliases yet: `guanaco alias set ID NAME` makes one.")


@alias_app.command("remove", epilog="Example: guanaco alias remove org/model@champion")
def remove_alias(
    alias: Annotated[
        str,
        typer.Argument(
            metavar="ALIAS", help="Whole, like org/model@champion.", autocompletion=complete_aliases
        ),
    ],
) -> None:
    """Take an alias away; the submission stays as it is."""
    with connect() as client:
        client.remove_alias(alias)
    console.say(f"Removed {alias}.")


@app.command("show-prompt", epilog="Example: guanaco show-prompt org-model_v2")
def show_prompt(
    submission_id: SubmissionId,
    is_hidden: Annotated[
        bool, typer.Option("--off", help="Show it no longer. Nobody sees it by default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a submission's prompt to everybody on its public page."""
    with connect() as client:
        submission = client.show_prompt(submission_id, not is_hidden)
    if as_json:
        console.json(submission)
        return
    shown = "is shown on its public page" if submission.show_prompt else "is not shown"
    console.say(f"The prompt of {submission.id} {shown}.")


@app.command(epilog="Example: guanaco tag org-model_v2 night lora --remove day")
def tag(
    submission_id: SubmissionId,
    added: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]…", help="Tags to add; none to see them.")
    ] = None,
    removed: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="A tag to take away.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add tags to a submission, take some away, or see them. `guanaco submissions --tag` filters by them."""
    with connect() as client:
        submission = client.submission(submission_id)
        if added or removed:
            kept = [one for one in submission.tags if one not in (removed or ())]
            submission = client.set_tags(submission.id, [*kept, *(added or ())])
    if as_json:
        console.json(submission)
        return
    for one in submission.tags:
        console.line(one)
    if not submission.tags:
        console.say(f"{submission.id} has no tags.")
