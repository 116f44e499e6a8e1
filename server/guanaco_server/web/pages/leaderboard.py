"""The leaderboard, for everybody: the table, the same as CSV, and two submissions side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import Response

from guanaco.competitions import OPEN
from guanaco.errors import InvalidInput, NewerVersionNeeded, NotFound
from guanaco.feedback_csv import plain_cell
from guanaco.leaderboard import Leaderboard, LeaderboardRow, LeaderboardVerdict
from guanaco.verdicts import (
    asked_words,
    chance_words,
    headline,
    pair_headline,
    pair_words,
    uncounted_words,
)
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.viewer import Viewer
from guanaco_server.web.rendering import SECURITY_HEADERS
from guanaco_server.web.room import WebRoom
from guanaco_server.web.views import trends
from guanaco_server.web.views.boards import BoardFilter, Sort, page_of, rows_of, shared_ranks
from guanaco_server.web.views.metric_tiles import METRICS, tiles_of
from guanaco_server.web.views.neighbours import deciding_votes
from guanaco_server.web.views.trends import scale_of

PageNumber = Annotated[int, Query(ge=1, le=100_000)]
SearchText = Annotated[str, Query(max_length=200)]
CompetitionId = Annotated[str, Query(max_length=64)]
Size = Annotated[str, Query(pattern=r"^(|[0-9]{1,4}(\.[0-9]{1,3})?)$")]
Compared = Annotated[list[str], Query(alias="with", max_length=50, default_factory=list)]

SIZES = (1, 3, 8, 15, 35, 80)  # billions of parameters
CSV_COLUMNS = (
    "rank", "submission_id", "name", "developer", "repo", "status", "created_at", "parameter_count", "license",
    "score", "score_low", "score_high", "thumbs_up", "thumbs_down", "thumbs_up_ratio", "interval_low", "interval_high",
    "feedback_count", "conversation_count", "mean_conversation_length",
)  # fmt: skip
NEIGHBOUR_COLUMNS = {
    "neighbour": "above",
    "stands_apart": "are_apart",
    "deciding_votes": "votes",
    "deciding_votes_are_fewest": "is_fewest",
}


def add_routes(routes: Routes, web: WebRoom) -> None:
    @routes.get("/")
    async def read_leaderboard(
        request: Request,
        competition: CompetitionId = OPEN,
        sort: Sort = Sort.RANK,
        order: Literal["usual", "reverse"] = "usual",
        page: PageNumber = 1,
        q: SearchText = "",
        developer: SearchText = "",
        license: SearchText = "",
        size: Size = "",
        sweep: SearchText = "",
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        board = await web.boards.board(chosen.id)
        _require_sweep(board, sweep)
        filtered = BoardFilter(q, developer, license, sweep, float(size) if size else None)
        shown = page_of(board, sort, page, filtered, is_reversed=order == "reverse")
        verdict = await _verdict(web, chosen.id)
        return web.pages.show(
            request,
            "leaderboard.html",
            base_url=str(request.base_url).rstrip("/"),
            board=board,
            shown=shown,
            sort=sort,
            order=order,
            sorts=list(Sort),
            query=q,
            filtered=filtered,
            size=size,
            sizes=SIZES,
            developers=sorted({row.developer for row in board.rows}, key=str.casefold),
            licenses=sorted({row.license for row in board.rows if row.license}, key=str.casefold),
            competition=chosen,
            competitions=await web.competitions.list_all(),
            sparks=await trends.sparks(web.history, board, shown.rows),
            shared=shared_ranks(board),
            scale=scale_of(board),
            verdict=headline(verdict) if verdict and verdict.leader else None,
            chance=chance_words(verdict) if verdict else None,
            uncounted=uncounted_words(board.rows),
            asked=asked_words(verdict) if verdict else None,
            asked_rows=verdict.asked.rows if verdict and verdict.asked else [],
            beside=_comparisons_with_leader(verdict),
            deciding=deciding_votes(shown.rows),
        )

    @routes.get("/leaderboard.csv")
    async def export_leaderboard(
        competition: CompetitionId = OPEN,
        sort: Sort = Sort.RANK,
        order: Literal["usual", "reverse"] = "usual",
        q: SearchText = "",
        developer: SearchText = "",
        license: SearchText = "",
        size: Size = "",
        sweep: SearchText = "",
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        board = await web.boards.board(chosen.id)
        _require_sweep(board, sweep)
        filtered = BoardFilter(q, developer, license, sweep, float(size) if size else None)
        rows = rows_of(board, sort, filtered, is_reversed=order == "reverse")
        name = f'attachment; filename="leaderboard-{chosen.id}.csv"'
        headers = SECURITY_HEADERS | {"Content-Disposition": name}
        return Response(_csv(rows), media_type="text/csv; charset=utf-8", headers=headers)

    @routes.get("/compare")
    async def compare(
        request: Request,
        with_: Compared,
        competition: CompetitionId = OPEN,
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        names = list(dict.fromkeys(with_))
        if len(names) != 2:
            raise InvalidInput(
                "Two submissions are compared.", hint="Choose two of the board, and compare again."
            )
        rows = [await web.boards.row(chosen.id, name) for name in names]
        rows.sort(key=lambda row: (row.rank is None, row.rank or 0, -(row.score_low or 0.0)))
        board = await web.boards.board(chosen.id)
        first, second = rows
        verdict = None
        if first.rank is not None and second.rank is not None:
            verdict = await _verdict(web, chosen.id, (first.submission_id, second.submission_id))
        return web.pages.show(
            request,
            "compare.html",
            base_url=str(request.base_url).rstrip("/"),
            rows=rows,
            competition=chosen,
            shared=shared_ranks(board),
            scale=scale_of(board),
            tiles=[tiles_of(row, METRICS) for row in rows],
            verdict=pair_headline(verdict) if verdict else None,
        )


async def _verdict(
    web: WebRoom, competition_id: str, pair: tuple[str, str] | None = None
) -> LeaderboardVerdict | None:
    try:
        if pair is not None:
            return await web.verdicts.between(competition_id, *pair)
        return await web.verdicts.verdict(competition_id)
    except NewerVersionNeeded:
        return None


def _comparisons_with_leader(verdict: LeaderboardVerdict | None) -> dict[str, str]:
    """Say by submission what is known of the leader beside it."""
    if verdict is None:
        return {}
    return {pair.submission_id: pair_words(pair, verdict) for pair in verdict.pairs}


def _require_sweep(board: Leaderboard, sweep: str) -> None:
    """Raise NotFound for a sweep that has no variant on the board."""
    if sweep and not any(row.sweep == sweep for row in board.rows):
        raise NotFound(f"No variant of a sweep {sweep} is in the competition {board.competition}.")


def _csv(rows: Sequence[LeaderboardRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((*CSV_COLUMNS, *NEIGHBOUR_COLUMNS))
    for row in rows:
        cells = row.model_dump(mode="json", include={*CSV_COLUMNS, "neighbour"})
        neighbour = cells["neighbour"] or {}
        writer.writerow(
            plain_cell(cell) if isinstance(cell, str) else cell
            for cell in (
                *(cells[column] for column in CSV_COLUMNS),
                *(neighbour.get(name) for name in NEIGHBOUR_COLUMNS.values()),
            )
        )
    return text.getvalue()
