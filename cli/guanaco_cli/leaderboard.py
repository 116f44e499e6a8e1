"""`guanaco leaderboard`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.leaderboard_rows import COLUMNS, row_of
from guanaco_cli.leaderboard_watch import watch_leaderboard
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from guanaco.leaderboard import Leaderboard

app = typer.Typer()

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
]
Every = Annotated[float, typer.Option(min=1, max=3_600, help="Seconds between looks.")]


@app.command(epilog="Example: guanaco leaderboard --watch")
def leaderboard(as_json: AsJson = False, watch: WatchOption = False, every: Every = 5.0) -> None:
    """How all submissions compare. Needs no key."""
    if as_json and watch:
        raise typer.BadParameter("choose --json or --watch, not both.")
    with connect() as client:
        if watch and sys.stdout.isatty():
            watch_leaderboard(client.leaderboard, every)
            return
        board = client.leaderboard()
    if as_json:
        console.json(board)
    else:
        print_leaderboard(board)


def print_leaderboard(
    board: Leaderboard, *, title: str | None = None, is_talk: bool = False
) -> None:
    console.table(COLUMNS, [row_of(row) for row in board.rows], title=title, is_talk=is_talk)
