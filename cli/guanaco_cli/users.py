"""`guanaco users` and `guanaco audit`"""

from __future__ import annotations

from typing import Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

app = typer.Typer(no_args_is_help=True)
audit_app = typer.Typer()


@app.callback()
def users() -> None:
    """Keeps `erase` a command of its own, though it is the only one."""


@app.command(epilog="Example: guanaco users erase user-17 --account my-app")
def erase(
    user_id: Annotated[
        str, typer.Argument(metavar="USER_ID", help="The app's own id of the user.")
    ],
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The backend's account, where several have it."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a user's conversations and ratings, everywhere and for good (admin)."""
    if not yes:
        typer.confirm("Erase all that this user said? It cannot be undone.", abort=True, err=True)
    with connect() as client:
        erased = client.erase_user(user_id, account=account)
    if as_json:
        console.json(erased)
        return
    console.say(erased.summary)


@audit_app.command(epilog="Example: guanaco audit --limit 20")
def audit(
    limit: Annotated[int, typer.Option(min=1, max=500, help="Entries at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """What admins did, newest first: reading or erasing users' data, keys, competitions, others' submissions (admin)."""
    with connect() as client:
        page = client.audit(limit=limit)
    if as_json:
        console.json(page.items)
        return
    console.table(
        ("when", "account", "did", "to"),
        [(words.moment(one.at), one.account, one.action, one.subject) for one in page.items],
    )
