"""The leaderboard's columns, for its table and its live display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from guanaco_cli import words

if TYPE_CHECKING:
    from guanaco.estimates import Estimate
    from guanaco.leaderboard import Leaderboard, LeaderboardRow

Column = tuple[str, Callable[["LeaderboardRow"], object]]


def columns_of(board: Leaderboard, sort: str = "rank") -> list[str]:
    return ["rank>", *(name for name, _ in _columns(board, sort))]


def rows_of(board: Leaderboard, sort: str = "rank") -> list[list[object]]:
    """As ``columns_of`` names them; ``=2`` is a rank that several share."""
    columns = _columns(board, sort)
    sharing = Counter(row.rank for row in board.rows)
    return [[_rank(row, sharing), *(cell(row) for _, cell in columns)] for row in board.rows]


def _columns(board: Leaderboard, sort: str) -> list[Column]:
    """By thumbs up, score and thumbs-up ratio are one figure; what it is sorted by is shown."""
    is_by_ratio = board.ranking == "thumbs_up"
    shown = _strength if board.ranking == "bradley_terry" else _share
    columns: list[Column] = [
        ("submission", lambda row: row.submission_id),
        ("developer", lambda row: row.developer),
        ("status", lambda row: row.status),
    ]
    if not is_by_ratio:
        columns += [
            ("score>", lambda row: shown(row.score)),
            ("95 % interval>", lambda row: _interval(row.score_low, row.score_high, shown)),
        ]
    columns.append(("thumbs up>", lambda row: words.percent(row.thumbs_up_ratio)))
    if is_by_ratio:
        columns.append(("95 % interval>", _ratio_interval))
    columns += [
        ("ratings>", lambda row: row.feedback_count),
        ("length>", lambda row: _decimal(row.mean_conversation_length)),
    ]
    return [*columns, SORTED_BY[sort]] if sort in SORTED_BY else columns


def _rank(row: LeaderboardRow, sharing: Counter[int | None]) -> str:
    if row.rank is None:
        return ""
    return f"={row.rank}" if sharing[row.rank] > 1 else str(row.rank)


def _ratio_interval(row: LeaderboardRow) -> str:
    return _interval(row.interval_low, row.interval_high, words.percent)


def _interval(low: float | None, high: float | None, shown: Callable[[float | None], str]) -> str:
    return "" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def _strength(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _estimate(found: Estimate | None, shown: Callable[[float | None], str]) -> str:
    return shown(found.value) if found else ""


SORTED_BY: dict[str, Column] = {
    "retention": ("retention>", lambda row: _estimate(row.retention, words.percent)),
    "repetition": ("repetition>", lambda row: _estimate(row.repetition, words.percent)),
    "regenerate_rate": ("regenerated>", lambda row: _estimate(row.regenerate_rate, words.percent)),
    "ttft": ("TTFT>", lambda row: _estimate(row.ttft_ms_median, words.milliseconds)),
    "reply_time": ("reply time>", lambda row: _estimate(row.reply_ms_median, words.milliseconds)),
    "newest": ("submitted", lambda row: words.moment(row.created_at)),
}
