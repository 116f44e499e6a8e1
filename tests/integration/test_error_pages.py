"""Tests what a browser gets in place of a page that cannot be shown."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import exc

from guanaco.errors import SubmissionNotFound
from guanaco_server.database.database import Database
from guanaco_server.http.errors import ErrorForms, install
from guanaco_server.http.routes import Routes, add_routes
from guanaco_server.web import words
from guanaco_server.web.page_route import install_error_pages, page_route
from tests.fixtures.world import World

GONE = exc.OperationalError("SELECT 1", {}, OSError("gone"))
ALL_TAKEN = exc.TimeoutError("QueuePool limit of size 10 overflow 10 reached")


@pytest.mark.parametrize("error", [GONE, ALL_TAKEN])
async def test_an_outage_of_the_database_is_a_page(database: Database, error: Exception) -> None:
    answer = await failing_page(database, error)
    assert (answer.status_code, answer.headers["content-type"][:9]) == (503, "text/html")
    assert "database does not answer" in answer.text
    assert "gone" not in answer.text


async def test_an_error_page_is_titled_by_its_sentence(database: Database) -> None:
    answer = await failing_page(database, SubmissionNotFound("org-x_v1"))
    assert answer.status_code == 404
    assert "<title>No submission org-x_v1 · Guanaco</title>" in answer.text


async def failing_page(database: Database, error: Exception) -> httpx.Response:
    pages = World(database).web.pages
    app = FastAPI()
    install(app, ErrorForms())
    install_error_pages(app, pages)
    routes = Routes(route_class=page_route(pages, has_replica=False))

    @routes.get("/")
    async def fail() -> None:
        raise error

    add_routes(app, routes)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.get("/", headers={"Accept": "text/html"})


async def test_a_visitor_is_not_told_of_commands(database: Database) -> None:
    answer = await failing_page(database, SubmissionNotFound("org-x_v1"))
    assert "guanaco submissions" not in answer.text


def test_percents_are_spaced_as_on_the_pages() -> None:
    assert words.spaced_percents("46% of 100% sure") == "46\u202f% of 100\u202f% sure"
