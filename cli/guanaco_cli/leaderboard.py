"""`guanaco leaderboard`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from guanaco.leaderboard import Leaderboard, LeaderboardRow

app = typer.Typer()


@app.command(epilog="Example: guanaco leaderboard --json | jq '.rows[0]'")
def leaderboard(as_json: AsJson = False) -> None:
    """How all submissions compare. Needs no key."""
    with connect() as client:
        board = client.leaderboard()
    if as_json:
        console.json(board)
    else:
        print_leaderboard(board)


def print_leaderboard(
    board: Leaderboard, *, title: str | None = None, is_talk: bool = False
) -> None:
    console.table(
        (
            "rank>",
            "submission",
            "developer",
            "status",
            "thumbs up>",
            "95 % interval>",
            "ratings>",
            "length>",
        ),
        [_row(row) for row in board.rows],
        title=title,
        is_talk=is_talk,
    )


def _row(row: LeaderboardRow) -> tuple[object, ...]:
    length = row.mean_conversation_length
    return (
        row.rank,
        row.submission_id,
        row.developer,
        row.status,
        words.percent(row.thumbs_up_ratio),
        _interval(row),
        row.feedback_count,
        "" if length is None else f"{length:.1f}",
    )


def _interval(row: LeaderboardRow) -> str:
    if row.interval_low is None:
        return ""
    return f"{words.percent(row.interval_low)} to {words.percent(row.interval_high)}"
