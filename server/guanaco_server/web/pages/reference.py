"""The HTTP API's reference, from its own OpenAPI document, which needs no script and nothing of another host; and other documents."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from markupsafe import Markup

from guanaco_server.http.routes import Routes
from guanaco_server.runtime import threads
from guanaco_server.web.access.viewer import Viewer
from guanaco_server.web.room import WebRoom
from guanaco_server.web.runbooks import PATH as RUNBOOKS_PATH
from guanaco_server.web.runbooks import read_runbooks
from guanaco_server.web.views import api_reference
from guanaco_server.web.views.metric_tiles import MEANING_PATH, METRICS


def add_routes(routes: Routes, web: WebRoom) -> None:
    body = _Body(web)

    @routes.get("/docs")
    async def read_reference(request: Request, viewer: Viewer = web.guards.public()) -> Response:
        text = await body.of(await request.app.state.api_document.schema())
        return web.pages.show(request, "reference.html", body=text)

    @routes.get(MEANING_PATH)
    async def read_meanings(request: Request, viewer: Viewer = web.guards.public()) -> Response:
        return web.pages.show(request, "scores.html", metrics=METRICS)

    runbooks = read_runbooks()

    @routes.get(RUNBOOKS_PATH)
    async def show_runbooks(request: Request, viewer: Viewer = web.guards.public()) -> Response:
        return web.pages.show(request, "runbooks.html", parts=runbooks)


class _Body:
    """Renders the reference once, in a thread: it takes some hundred milliseconds, and anybody may ask for it."""

    def __init__(self, web: WebRoom) -> None:
        self._web = web
        self._turn = asyncio.Lock()
        self._rendered: Markup | None = None

    async def of(self, document: dict[str, Any]) -> Markup:
        async with self._turn:
            if self._rendered is None:
                self._rendered = await threads.PAGES.run(self._render, document)
        return self._rendered

    def _render(self, document: dict[str, Any]) -> Markup:
        shown = api_reference.read(document)
        return self._web.pages.fragment("reference_body.html", reference=shown)
