"""Routes that are worked out late answer, and are described, like FastAPI's own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel
from starlette.types import Message

from guanaco_server.http.routes import LateRoute, Routes, add_routes

THREADS = 8


class Item(BaseModel):
    name: str
    count: int = 1


def some_routes() -> Routes:
    routes = Routes(prefix="/items", tags=["items"])

    @routes.post("/{item_id}", status_code=201)
    async def put(item_id: int, item: Item, dry: bool = False) -> Item:
        return item if dry else Item(name=item.name, count=item_id)

    return routes


def late_app(asked: list[str] | None = None) -> FastAPI:
    async def note() -> None:
        if asked is not None:
            asked.append("asked")

    app = FastAPI()
    add_routes(app, some_routes(), Depends(note))
    return app


async def test_a_late_route_answers_and_asks_what_it_depends_on() -> None:
    asked: list[str] = []
    transport = httpx.ASGITransport(late_app(asked))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        made = await http.post("/items/7", json={"name": "a"})
        wrong = await http.post("/items/x", json={"name": "a"})
        other = await http.get("/items/7")
    assert (made.status_code, made.json()) == (201, {"name": "a", "count": 7})
    assert wrong.status_code == 422
    assert other.status_code == 405
    assert asked


async def test_a_client_that_leaves_in_its_body_is_no_fault() -> None:
    sent: list[Message] = []
    scope = {
        "type": "http", "method": "POST", "path": "/items/7", "headers": [], "query_string": b"",
    }  # fmt: skip

    async def leaves() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await late_app()(scope, leaves, send)
    assert sent[0]["status"] == 400


def test_it_is_described_as_an_included_one() -> None:
    included = FastAPI()
    included.include_router(some_routes())
    assert late_app().openapi() == included.openapi()


def test_threads_that_ask_at_once_all_get_the_whole_route() -> None:
    (route,) = some_routes().routes
    together = threading.Barrier(THREADS)

    def ask(_: int) -> object:
        together.wait()
        return route.unique_id  # type: ignore[attr-defined]

    with ThreadPoolExecutor(THREADS) as threads:
        assert set(threads.map(ask, range(THREADS))) == {"put_items__item_id__post"}


def test_what_a_route_has_not_is_an_attribute_error() -> None:
    (route,) = some_routes().routes
    assert isinstance(route, LateRoute)
    with pytest.raises(AttributeError):
        _ = route.nothing_like_it
