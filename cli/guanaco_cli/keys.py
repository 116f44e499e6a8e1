"""`guanaco keys`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

app = typer.Typer(no_args_is_help=True)


@app.command(epilog="Example: guanaco keys create --role developer --name alice")
def create(
    role: Annotated[Literal["developer", "backend", "admin"], typer.Option(help="What it may do.")],
    name: Annotated[str, typer.Option(help="The account that it belongs to; made if new.")],
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once."""
    with connect() as client:
        created = client.create_key(name, role)
    if as_json:
        console.json(created)
        return
    console.line(created.key)
    console.say(f"The key of {created.name} ({created.role}, id {created.id}) is shown only now.")


@app.command("list", epilog="Example: guanaco keys list --json")
def list_keys(as_json: AsJson = False) -> None:
    """Every key, without its secret."""
    with connect() as client:
        keys = client.keys()
    if as_json:
        console.json(keys)
        return
    console.table(
        ("id", "name", "role", "created", "last used", "revoked"),
        [
            (
                key.id,
                key.name,
                key.role,
                words.moment(key.created_at),
                words.moment(key.last_used_at) or "never",
                words.moment(key.revoked_at),
            )
            for key in keys
        ],
    )


@app.command(epilog="Example: guanaco keys revoke 3f2a9c")
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, from `guanaco keys list`.")
    ],
    as_json: AsJson = False,
) -> None:
    """From now on the key opens nothing."""
    with connect() as client:
        key = client.revoke_key(key_id)
    if as_json:
        console.json(key)
    else:
        console.say(f"Revoked {key.id} of {key.name}.")
