"""The leaderboard, for everybody."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from guanaco.competitions import OPEN
from guanaco_server.http.routes import Routes
from guanaco_server.web import trends
from guanaco_server.web.boards import Sort, page_of, shared_ranks
from guanaco_server.web.room import WebRoom
from guanaco_server.web.trends import scale_of
from guanaco_server.web.viewer import Viewer

PageNumber = Annotated[int, Query(ge=1, le=100_000)]
SearchText = Annotated[str, Query(max_length=200)]
CompetitionId = Annotated[str, Query(max_length=64)]


def add_routes(routes: Routes, web: WebRoom) -> None:
    @routes.get("/")
    async def read_leaderboard(
        request: Request,
        competition: CompetitionId = OPEN,
        sort: Sort = Sort.RANK,
        page: PageNumber = 1,
        q: SearchText = "",
        viewer: Viewer = web.guards.public(),
    ) -> Response:
        chosen = await web.competitions.find(competition)
        board = await web.boards.board(chosen.id)
        shown = page_of(board, sort, page, q)
        return web.pages.show(
            request,
            "leaderboard.html",
            board=board,
            shown=shown,
            sort=sort,
            sorts=list(Sort),
            query=q,
            competition=chosen,
            competitions=await web.competitions.list_all(),
            sparks=await trends.sparks(web.history, board, shown.rows),
            shared=shared_ranks(board),
            scale=scale_of(board),
        )
