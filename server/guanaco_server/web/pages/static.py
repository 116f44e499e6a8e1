"""Style, scripts and pictures."""

from __future__ import annotations

from fastapi.responses import Response

from guanaco.errors import NotFound
from guanaco_server.http.routes import Routes
from guanaco_server.web.access.viewer import Viewer
from guanaco_server.web.room import WebRoom

FOR_EVER = "public, max-age=31536000, immutable"
A_WHILE = "public, max-age=60"


def add_routes(routes: Routes, web: WebRoom) -> None:
    @routes.get("/static/{name}")
    async def read_asset(name: str, v: str = "", viewer: Viewer = web.guards.public()) -> Response:
        asset = web.assets.find(name)
        if asset is None:
            raise NotFound("There is no such file.")
        keep = FOR_EVER if v == asset.version else A_WHILE
        headers = {"Cache-Control": keep, "X-Content-Type-Options": "nosniff"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)
