"""The leaderboard, live: fetched every few seconds, with a mark on each rank that has moved since the first look."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from guanaco_cli import words
from guanaco_cli.console import console
from guanaco_cli.leaderboard_rows import columns_of, rows_of

if TYPE_CHECKING:
    from rich.table import Table

    from guanaco.leaderboard import Leaderboard


def watch_leaderboard(fetch: Callable[[], Leaderboard], every_s: float, sort: str) -> None:
    """Until Ctrl-C. A server that does not answer for a while leaves the last table, and says so."""
    from rich.live import Live

    from guanaco.errors import Unavailable

    board = fetch()
    first = ranks_of(board)
    with Live(
        live_table(board, first, sort), console=console.rich(is_talk=False), auto_refresh=False
    ) as live:
        try:
            while True:
                time.sleep(every_s)
                try:
                    board, trouble = fetch(), None
                except Unavailable as error:
                    trouble = error.detail
                live.update(live_table(board, first, sort, trouble), refresh=True)
        except KeyboardInterrupt:
            return


def ranks_of(board: Leaderboard) -> dict[str, int | None]:
    return {row.submission_id: row.rank for row in board.rows}


def live_table(
    board: Leaderboard, first: dict[str, int | None], sort: str, trouble: str | None = None
) -> Table:
    marks = [mark(first.get(row.submission_id, 0), row.rank) for row in board.rows]
    rows = [(moved, *cells) for moved, cells in zip(marks, rows_of(board, sort), strict=True)]
    caption = f"as of {words.clock(board.at)}; Ctrl-C ends"
    return console.make_table(
        ("moved", *columns_of(board, sort)),
        rows,
        caption=f"{caption}. {trouble} Trying again." if trouble else caption,
    )


def mark(before: int | None, now: int | None) -> str:
    """How many places up or down; ``new`` for one that was not there (0) or had no rank."""
    if now is None or now == before:
        return ""
    if not before:
        return "new"
    return f"up {before - now}" if now < before else f"down {now - before}"
