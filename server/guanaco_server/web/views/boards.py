"""The leaderboard as a page shows it: read once for everybody who looks within two seconds, sorted, in pages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from guanaco.errors import SubmissionNotFound
from guanaco.leaderboard import Leaderboard, LeaderboardRow, group_by_sweep

FRESH_S = 2.0
PAGE_ROWS = 50

BoardReader = Callable[[str], Awaitable[Leaderboard]]
"""A competition's leaderboard, by its id."""


class Sort(StrEnum):
    RANK = "rank"
    SCORE = "score"
    NEWEST = "newest"
    VOTES = "votes"
    RATIO = "ratio"
    LENGTH = "length"
    NAME = "name"
    DEVELOPER = "developer"


@dataclass(frozen=True)
class BoardPage:
    """``behind`` says by submission how many variants of its sweep stand behind it, in one row with it."""

    rows: list[LeaderboardRow]
    page: int
    pages: int
    total: int
    behind: Mapping[str, int] = field(default_factory=dict)


class Boards:
    def __init__(self, read: BoardReader, fresh_s: float = FRESH_S) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._kept: dict[str, tuple[float, Leaderboard]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def board(self, competition: str, holding: str | None = None) -> Leaderboard:
        """Return the board, at most ``fresh_s`` old, and not older than a submission that it is to hold; those who ask at once share one reading."""
        if (kept := self._fresh(competition, holding)) is not None:
            return kept
        async with self._locks[competition]:
            if (kept := self._fresh(competition, holding)) is not None:
                return kept
            board = await self._read(competition)
            self._kept[competition] = (time.monotonic(), board)
            return board

    async def row(self, competition: str, submission_id: str) -> LeaderboardRow:
        """SubmissionNotFound for one that is not shown to the public."""
        board = await self.board(competition)
        for row in board.rows:
            if row.submission_id == submission_id:
                return row
        raise SubmissionNotFound(submission_id)

    def _fresh(self, competition: str, holding: str | None) -> Leaderboard | None:
        at, board = self._kept.get(competition, (0.0, None))
        if board is None or time.monotonic() - at >= self._fresh_s:
            return None
        is_in = holding is None or any(row.submission_id == holding for row in board.rows)
        return board if is_in else None


def shared_ranks(board: Leaderboard) -> set[int]:
    """Return the ranks that several submissions share."""
    ranks = Counter(row.rank for row in board.rows if row.rank is not None)
    return {rank for rank, count in ranks.items() if count > 1}


@dataclass(frozen=True)
class BoardFilter:
    """A filter of the rows that a page shows; empty fields filter nothing. ``size`` is the most parameters, in billions."""

    text: str = ""
    developer: str = ""
    license: str = ""
    sweep: str = ""
    size: float | None = None

    def admits(self, row: LeaderboardRow) -> bool:
        """Tell whether a row is shown. A model of unknown size exceeds any."""
        count = row.parameter_count
        return (
            self.text.casefold() in _text(row)
            and self.developer in ("", row.developer)
            and self.license in ("", row.license)
            and self.sweep in ("", row.sweep)
            and (self.size is None or (count is not None and count <= self.size * 1e9))
        )


def rows_of(
    board: Leaderboard, sort: Sort, shown: BoardFilter, *, is_reversed: bool = False
) -> list[LeaderboardRow]:
    """Return the rows that a filter lets through, in order. Rows without a value stay last when reversed."""
    rows = [row for row in board.rows if shown.admits(row)]
    rows.sort(key=_KEYS[sort])
    if is_reversed:
        valued = [row for row in rows if _has_value(sort, row)]
        rows = valued[::-1] + [row for row in rows if not _has_value(sort, row)]
    return rows


def page_of(
    board: Leaderboard, sort: Sort, page: int, shown: BoardFilter, *, is_reversed: bool = False
) -> BoardPage:
    """Return the rows of a page; one that is not there is the nearest that is."""
    rows = rows_of(board, sort, shown, is_reversed=is_reversed)
    rows, behind = (rows, {}) if shown.sweep else group_by_sweep(rows)
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(max(page, 1), pages)
    return BoardPage(
        rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], page, pages, len(rows), behind
    )


def _has_value(sort: Sort, row: LeaderboardRow) -> bool:
    values = {
        Sort.RANK: row.rank,
        Sort.SCORE: row.score,
        Sort.RATIO: row.thumbs_up_ratio,
        Sort.LENGTH: row.mean_conversation_length,
    }
    return sort not in values or values[sort] is not None


def _text(row: LeaderboardRow) -> str:
    return f"{row.name}\n{row.developer}\n{row.repo}\n{row.submission_id}".casefold()


def _last_if_none(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


_KEYS: dict[Sort, Callable[[LeaderboardRow], Any]] = {
    Sort.RANK: lambda row: (
        row.rank is None,
        row.rank or 0,
        -(row.score_low or 0.0),
        -row.created_at.timestamp(),
    ),
    Sort.NEWEST: lambda row: -row.created_at.timestamp(),
    Sort.VOTES: lambda row: -(row.thumbs_up + row.thumbs_down),
    Sort.SCORE: lambda row: _last_if_none(row.score),
    Sort.RATIO: lambda row: _last_if_none(row.thumbs_up_ratio),
    Sort.LENGTH: lambda row: _last_if_none(row.mean_conversation_length),
    Sort.NAME: lambda row: row.name.casefold(),
    Sort.DEVELOPER: lambda row: (row.developer.casefold(), row.rank is None, row.rank or 0),
}
