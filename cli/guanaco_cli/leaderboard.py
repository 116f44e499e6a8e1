"""`guanaco leaderboard`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.leaderboard_rows import columns_of, rows_of
from guanaco_cli.leaderboard_watch import watch_leaderboard
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from guanaco.leaderboard import Leaderboard

app = typer.Typer()

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
]
Every = Annotated[float, typer.Option(min=1, max=3_600, help="Seconds between looks.")]


Of = Annotated[str, typer.Option("--competition", metavar="ID", help="Of which competition.")]
Sort = Annotated[  # LeaderboardSort's values; a test holds these to them
    Literal[
        "rank",
        "thumbs_up",
        "conversation_length",
        "retention",
        "repetition",
        "regenerate_rate",
        "ttft",
        "reply_time",
        "feedback",
        "newest",
    ],
    typer.Option(help="Best first."),
]


@app.command(epilog="Example: guanaco leaderboard --competition autumn --sort retention --watch")
def leaderboard(
    competition: Of = "open",
    sort: Sort = "rank",
    as_json: AsJson = False,
    watch: WatchOption = False,
    every: Every = 5.0,
) -> None:
    """How all submissions compare. Needs no key."""
    if as_json and watch:
        raise typer.BadParameter("choose --json or --watch, not both.")
    with connect() as client:

        def fetch() -> Leaderboard:
            return client.leaderboard(competition=competition, sort=sort)

        if watch and sys.stdout.isatty():
            watch_leaderboard(fetch, every, sort)
            return
        board = fetch()
    if as_json:
        console.json(board)
    else:
        print_leaderboard(board, sort=sort)


def print_leaderboard(
    board: Leaderboard, *, sort: str = "rank", title: str | None = None, is_talk: bool = False
) -> None:
    console.table(columns_of(board, sort), rows_of(board, sort), title=title, is_talk=is_talk)
