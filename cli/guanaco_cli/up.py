"""`guanaco up`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guanaco.errors import InvalidSettings
from guanaco_cli.console import BOLD, console
from guanaco_cli.engine_env import find_engine_python
from guanaco_cli.options import Config, DataDir, Port
from guanaco_cli.platform_extra import needs_platform

if TYPE_CHECKING:
    from guanaco_server.serve import Started
    from guanaco_server.settings import Settings

app = typer.Typer()


@app.command(epilog="Example: guanaco up --data-dir ~/guanaco --port 8300")
def up(
    data_dir: DataDir = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default=False)
    ] = None,
    port: Port = None,
    config: Config = None,
    role: Annotated[
        Literal["all", "api", "worker"] | None,
        typer.Option(help="What this process does. [default: all]", show_default=False),
    ] = None,
    gateways: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that answer requests. [default: 1]", show_default=False
        ),
    ] = None,
) -> None:
    """Run the platform on this machine, until Ctrl-C."""
    use_config(config)
    with needs_platform():
        from guanaco_server.serve import run
    given = {"data_dir": data_dir, "host": host, "port": port, "role": role, "gateways": gateways}
    settings = read_settings({name: value for name, value in given.items() if value is not None})
    raise typer.Exit(run(settings, greet))


def use_config(config: Path | None) -> None:
    if config is not None:
        os.environ["GUANACO_CONFIG"] = str(config)


def read_settings(given: dict[str, Any]) -> Settings:
    """Read the settings, and warn of those that were removed."""
    from guanaco_server.settings import load_settings

    python = find_engine_python()
    loaded = load_settings(given, found={"engine_python": python} if python else {})
    for notice in loaded.notices:
        console.warn(notice)
    return loaded.settings


def greet(started: Started) -> None:
    """Say where the platform is and what to do next; on its first start, store the admin's profile."""
    console.say(f"Guanaco runs at {started.url}", style=BOLD)
    if started.admin_key is not None:
        console.say(f"Admin key, shown only now: {started.admin_key}")
        _store_profile(started.url, started.admin_key)
    console.say("Next: `guanaco doctor`, `guanaco keys create --role developer --name alice`,")
    console.say("      `guanaco submit org/model`. Ctrl-C stops the platform.")


def _store_profile(url: str, key: str) -> None:
    from guanaco.profile import Profile, profile_path

    path = profile_path()
    try:
        known = Profile.read(path)
        if known is not None and known.url != url and known.key is not None:
            console.say(
                f"{path} is for {known.url} and stays. `guanaco login --url {url}` changes it."
            )
            return
        Profile(url, key).save(path)
    except InvalidSettings as error:
        console.warn(f"{error.detail} Use `guanaco login --url {url}` later.")
        return
    console.say(f"The commands on this machine use it from now on ({path}).")
