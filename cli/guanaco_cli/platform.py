"""`guanaco up`, `migrate`, `first-key` and `settings`: the commands that run on the platform's own machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guanaco.errors import Conflict, InvalidSettings
from guanaco_cli.console import BOLD, console
from guanaco_cli.installation import load_settings, needs_platform, read_settings
from guanaco_cli.options import AsJson, Config, DataDir, Port

if TYPE_CHECKING:
    from guanaco_server.serve import StartupInfo

app = typer.Typer()

Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default=False)
]
Role = Annotated[
    Literal["all", "api", "worker"] | None,
    typer.Option(help="The role of this process. [default: all]", show_default=False),
]
Gateways = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that answer requests. [default: 1]", show_default=False),
]


@app.command(epilog="Example: guanaco up --data-dir ~/guanaco --port 8300")
def up(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    role: Role = None,
    gateways: Gateways = None,
) -> None:
    """Run the platform on this machine, until Ctrl-C."""
    with needs_platform():
        from guanaco_server.serve import run
    given = {"data_dir": data_dir, "host": host, "port": port, "role": role, "gateways": gateways}
    raise typer.Exit(run(read_settings(given, config), greet))


@app.command(epilog="Example: guanaco migrate --config guanaco.toml")
def migrate(data_dir: DataDir = None, config: Config = None) -> None:
    """Bring the database's tables up to date; safe to repeat."""
    with needs_platform():
        from guanaco_server import preparation
    before, after = preparation.migrate(read_settings({"data_dir": data_dir}, config))
    if before == after:
        console.say(f"The database is at revision {after} already.")
    else:
        console.say(f"The database was at revision {before or 'none'} and is at {after} now.")


@app.command("first-key", epilog="Example: guanaco first-key")
def first_key(data_dir: DataDir = None, config: Config = None) -> None:
    """Make and print an admin key if no admin key works."""
    with needs_platform():
        from guanaco_server import preparation
    created = preparation.first_key(read_settings({"data_dir": data_dir}, config))
    if created is None:
        raise Conflict(
            "This database has an admin key already.",
            hint="An admin makes more with `guanaco keys create`.",
        )
    console.line(created.key)


@app.command(epilog="Example: guanaco settings --changed")
def settings(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    role: Role = None,
    gateways: Gateways = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those that differ from the default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the settings in effect and where each comes from. Secrets are masked.

    With the options of `guanaco up`, it shows what that command would use.
    """
    with needs_platform():
        from guanaco_server.settings.report import settings_in_effect
    given = {"data_dir": data_dir, "host": host, "port": port, "role": role, "gateways": gateways}
    found = settings_in_effect(load_settings(given, config))
    shown = [one for one in found if one.is_changed or not changed]
    if as_json:
        console.json({"settings": [asdict(one) for one in shown]})
        return
    rows = [(one.name, _text(one.value), _text(one.default), one.source) for one in shown]
    console.table(("setting", "value", "default", "from"), rows)
    if not rows:
        console.say("Every setting has its default.")


def greet(started: StartupInfo) -> None:
    """Say where the platform is and what to do next; on its first start, store the admin's profile."""
    if started.role == "worker":
        console.say("The worker of the pipeline runs.", style=BOLD)
        console.say(f"Next: {started.url}/readyz says how it is; processes with `--role api`")
        console.say("      answer everybody else. Ctrl-C stops it.")
        return
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


def _text(value: Any) -> str:
    """Write a value as the environment takes it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
