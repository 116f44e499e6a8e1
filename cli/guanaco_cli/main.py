"""The `guanaco` command: its groups, put together.

Starting fast is a feature: no module imports httpx, pydantic or rich before a command runs, and help is plain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from guanaco_cli import (
    assignment,
    chat,
    competitions,
    costs,
    doctor,
    experiments,
    feedback,
    keys,
    leaderboard,
    lifecycle,
    login,
    plan,
    platform,
    prompt,
    recipe,
    stress,
    submissions,
    submit,
    users,
    webhook,
)
from guanaco_cli.console import console
from guanaco_cli.demo import command as demo
from guanaco_cli.failures import report

COMMANDS = (
    login,
    submit,
    submissions,
    stress,
    chat,
    feedback,
    leaderboard,
    lifecycle,
    assignment,
    recipe,
    costs,
    plan,
    platform,
    demo,
    doctor,
)

app = typer.Typer(
    name="guanaco",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in COMMANDS:
    app.add_typer(module.app)
app.add_typer(
    competitions.app, name="competitions", help="List, show; put, freeze, recompute (admin)."
)
app.add_typer(
    competitions.votes_app, name="votes", help="Left out of scores: flags, allow (admin)."
)
app.add_typer(
    experiments.app, name="experiments", help="A/B experiments: start, stop, results (admin)."
)
app.add_typer(keys.app, name="keys", help="API keys: create, list, revoke (admin).")
app.add_typer(prompt.app, name="prompt", help="Prompts: try one out.")
app.add_typer(webhook.app, name="webhook", help="Be told: set, show, test, rotate, remove.")
app.add_typer(users.app, name="users", help="Users' rights: erase (admin).")
app.add_typer(users.audit_app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from guanaco import __version__

        console.line(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Submit chat models, and read what people think of them."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit status: 0 done, 1 it failed, 2 wrong use, 130 interrupted."""
    console.prepare()
    try:
        app(list(arguments), prog_name="guanaco")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  # the last resort: a sentence instead of a traceback
        return report(error)
    return 0
