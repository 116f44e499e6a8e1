"""`guanaco migrate` and `guanaco first-key`: before processes that share a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from guanaco.errors import InvalidSettings
from guanaco_cli.console import console
from guanaco_cli.options import Config, DataDir
from guanaco_cli.platform_extra import needs_platform
from guanaco_cli.up import read_settings, use_config

app = typer.Typer()


@app.command(epilog="Example: guanaco migrate --config guanaco.toml")
def migrate(data_dir: DataDir = None, config: Config = None) -> None:
    """Bring the database's tables up to date; safe to repeat."""
    use_config(config)
    with needs_platform():
        from guanaco_server import preparation
    before, after = preparation.migrate(read_settings(_given(data_dir)))
    if before == after:
        console.say(f"The database is at revision {after} already.")
    else:
        console.say(f"The database was at revision {before or 'none'} and is at {after} now.")


@app.command("first-key", epilog="Example: guanaco first-key")
def first_key(data_dir: DataDir = None, config: Config = None) -> None:
    """Make the admin key of a database that has no key yet, and print it."""
    use_config(config)
    with needs_platform():
        from guanaco_server import preparation
    created = preparation.first_key(read_settings(_given(data_dir)))
    if created is None:
        raise InvalidSettings(
            "This database has keys already.",
            hint="An admin makes more with `guanaco keys create`.",
        )
    console.line(created.key)


def _given(data_dir: Path | None) -> dict[str, Any]:
    return {"data_dir": data_dir} if data_dir is not None else {}
