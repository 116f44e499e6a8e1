"""The `guanaco` command: its groups, put together.

Starting fast is a feature: no module imports httpx, pydantic or rich before a command runs, and help is plain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from guanaco_cli import (
    accounts,
    alerts,
    aliases,
    backup,
    characters,
    chat,
    competitions,
    conversations,
    doctor,
    duels,
    evaluate,
    experiments,
    feedback,
    gpus,
    leaderboard,
    platform,
    prompts,
    simulate,
    stress,
    submissions,
    submit,
    sweeps,
    webhook,
)
from guanaco_cli.completion import mend_bash_words
from guanaco_cli.console import console
from guanaco_cli.demo import command as demo
from guanaco_cli.failures import FAILED, report
from guanaco_cli.sections import SectionedGroup

COMMANDS = (
    accounts.app,
    submit.app,
    submissions.app,
    aliases.app,
    evaluate.app,
    stress.app,
    chat.app,
    feedback.app,
    leaderboard.app,
    competitions.assignment_app,
    gpus.app,
    simulate.app,
    alerts.app,
    platform.app,
    backup.restore_app,
    demo.app,
    doctor.app,
)
GROUPS = {
    "sweep": (
        sweeps.app,
        "Many variants of one repo: submit a file; show, cancel.",
    ),
    "alias": (aliases.alias_app, "Aliases of your submissions: set, list, remove."),
    "characters": (characters.app, "Stored characters: push a card, list, show, export."),
    "conversations": (
        conversations.app,
        "An app's conversations: open, say, choose, rate, delete.",
    ),
    "duels": (duels.app, "Two replies to one message: battle, vote; results."),
    "competitions": (competitions.app, "List, show; put, freeze, recompute (admin)."),
    "votes": (competitions.votes_app, "Ratings left out: flags, allow; hide-quote (admin)."),
    "experiments": (experiments.app, "A/B experiments: start, stop, results (admin)."),
    "keys": (accounts.keys_app, "API keys: create, list, revoke (admin)."),
    "quota": (accounts.quota_app, "Your limits and what is left; set (admin)."),
    "prompts": (prompts.app, prompts.HELP),
    "backup": (backup.app, "Back up a platform's data: make, list and verify backups."),
    "webhook": (webhook.app, "Notifications to your server: set, show, test, remove."),
    "alerts": (alerts.group, "Alerts to the operator: what fires; test (admin)."),
    "users": (accounts.users_app, "Users' rights: erase (admin)."),
}

app = typer.Typer(
    name="guanaco",
    cls=SectionedGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in COMMANDS:
    app.add_typer(commands)
for name, (group, summary) in GROUPS.items():
    app.add_typer(group, name=name, help=summary)
app.add_typer(accounts.audit_app)
app.add_typer(prompts.app, name="prompt", hidden=True)  # as it was called before


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


@cache
def command() -> Any:
    """Build the tree of all commands, once in a process: that takes longer than most commands do."""
    return typer.main.get_command(app)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit status: 0 done, 1 it failed, 2 wrong use, 130 interrupted."""
    if not console.prepare():
        return FAILED
    try:
        mend_bash_words(os.environ)
        command()(list(arguments), prog_name="guanaco")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  # the last resort: a sentence instead of a traceback
        return report(error, app, arguments)
    return 0
