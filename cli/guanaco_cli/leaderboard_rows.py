"""The leaderboard's columns, for its table and its live display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guanaco_cli import words

if TYPE_CHECKING:
    from guanaco.leaderboard import LeaderboardRow

COLUMNS = (
    "rank>",
    "submission",
    "developer",
    "status",
    "thumbs up>",
    "95 % interval>",
    "ratings>",
    "length>",
)


def row_of(row: LeaderboardRow) -> tuple[object, ...]:
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
