"""The HTTP API's reference, from its own OpenAPI description; no script from another host draws it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from guanaco_server.web.metric_tiles import MEANING_PATH, METRICS
from guanaco_server.web.room import WebRoom
from guanaco_server.web.viewer import Viewer


@dataclass(frozen=True)
class ApiCall:
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[str, ...]
    has_body: bool


def add_routes(routes: APIRouter, web: WebRoom) -> None:
    @routes.get("/docs")
    async def read_reference(request: Request, viewer: Viewer = web.guards.public()) -> Response:
        rooms = calls_by_room(await request.app.state.api_document.schema())
        return web.pages.show(request, "reference.html", rooms=rooms)

    @routes.get(MEANING_PATH)
    async def read_meanings(request: Request, viewer: Viewer = web.guards.public()) -> Response:
        return web.pages.show(request, "scores.html", metrics=METRICS)


def calls_by_room(description: dict[str, Any]) -> dict[str, list[ApiCall]]:
    """By tag, in the order in which they are described."""
    rooms: defaultdict[str, list[ApiCall]] = defaultdict(list)
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            for tag in call.get("tags", ["other"]):
                rooms[tag].append(_read(method, path, call))
    return dict(rooms)


def _read(method: str, path: str, call: dict[str, Any]) -> ApiCall:
    named = (item for item in call.get("parameters", []) if item["in"] in ("query", "header"))
    return ApiCall(
        method=method.upper(),
        path=path,
        summary=call.get("summary", ""),
        description=call.get("description", ""),
        parameters=tuple(
            f"{item['name']}{'' if item['in'] == 'query' else ' (header)'}" for item in named
        ),
        has_body="requestBody" in call,
    )
