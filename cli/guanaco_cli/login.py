"""`guanaco login`"""

from __future__ import annotations

from typing import Annotated

import typer

from guanaco_cli.connection import transport
from guanaco_cli.console import console

app = typer.Typer()


@app.command(epilog="Example: guanaco login --url https://guanaco.example.com")
def login(
    url: Annotated[
        str | None, typer.Option(help="The server. [default: the profile's]", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The API key; asked for, unseen, when not given.", show_default=False),
    ] = None,
) -> None:
    """Store the server and your API key, after trying them."""
    from guanaco.client import Client
    from guanaco.profile import DEFAULT_URL, Profile, profile_path

    url = url or typer.prompt("Server", default=DEFAULT_URL, err=True)
    key = key or typer.prompt("API key", hide_input=True, err=True)
    profile = Profile(url, key.strip())
    with Client(profile.url, profile.key, transport=transport.get()) as client:
        identity = client.me()
    path = profile_path()
    profile.save(path)
    console.say(f"You are {identity.name} ({identity.role}) at {profile.url}; stored in {path}.")
