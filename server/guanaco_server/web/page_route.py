"""On a page errors are pages: one sentence and a way on, in the place of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException

from guanaco.errors import GuanacoError, InvalidInput, NotFound, Unauthenticated
from guanaco_server.database.postgresql.replica import STALENESS_S, is_writer
from guanaco_server.http import errors as http_errors
from guanaco_server.http.routes import LateRoute
from guanaco_server.web.forms import FormKept
from guanaco_server.web.rendering import Pages, see_other

API_PATHS = ("/api/", "/v1/")
WROTE = "guanaco_wrote"  # a cookie of a browser that has written within STALENESS_S
EVENT_STREAM = "text/event-stream"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def page_route(pages: Pages, *, has_replica: bool) -> type[LateRoute]:
    """Return the class of the pages' routes.

    ``has_replica``: a browser that has written gets a short-lived cookie, so that its next pages show what it wrote.
    """

    class PageRoute(LateRoute):
        def get_route_handler(self) -> Handler:
            answer = super().get_route_handler()

            async def handle(request: Request) -> Response:
                is_writer.set(WROTE in request.cookies)
                response = await translated(request)
                if has_replica and request.method != "GET":
                    lifetime_s = math.ceil(STALENESS_S)
                    response.set_cookie(WROTE, "1", lifetime_s, httponly=True, samesite="lax")
                return response

            async def translated(request: Request) -> Response:
                try:
                    return await answer(request)
                except FormKept as kept:
                    return show_sign_in(pages, request, kept.path, status=401, kept=kept.fields)
                except GuanacoError as error:
                    return _answer(pages, request, error)
                except RequestValidationError as error:
                    sentence = http_errors.describe_problems(error.errors())
                    return _answer(pages, request, InvalidInput(sentence))
                except DataError:
                    unstorable = "Your text holds a character that cannot be stored."
                    return _answer(pages, request, InvalidInput(unstorable))
                except http_errors.DATABASE_AWAY as error:
                    what = f"{request.method} {request.url.path}"
                    return _answer(pages, request, http_errors.as_guanaco_error(what, error))

            return handle

    return PageRoute


def install_error_pages(app: FastAPI, pages: Pages) -> None:
    """Install pages for unknown paths and unforeseen errors; programs go on getting JSON."""
    tell_http = app.exception_handlers[HTTPException]
    tell_unforeseen = app.exception_handlers[Exception]

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if not _is_for_people(request):
            answer: Response = await tell_http(request, error)  # type: ignore[misc]
            return answer
        if error.status_code == 404:
            return pages.error(request, NotFound("There is no such page."))
        page = pages.error(request, GuanacoError(f"{error.detail}."))
        page.status_code = error.status_code
        return page

    @app.exception_handler(Exception)
    async def internal_error_response(request: Request, error: Exception) -> Response:
        if not _is_for_people(request):
            answer: Response = await tell_unforeseen(request, error)  # type: ignore[misc]
            return answer
        what = f"{request.method} {request.url.path}"
        return pages.error(request, http_errors.internal_fault(what, error))


def show_sign_in(
    pages: Pages,
    request: Request,
    then: str,
    *,
    status: int = 200,
    problem: str | None = None,
    kept: Mapping[str, str] | None = None,
) -> Response:
    """Show the form to sign in. ``then`` is the page that follows, or where the ``kept`` form is sent."""
    return pages.show(
        request, "signin.html", status=status, next=then, problem=problem, kept=kept or {}
    )


def _answer(pages: Pages, request: Request, error: GuanacoError) -> Response:
    if EVENT_STREAM in request.headers.get("accept", ""):
        return http_errors.answer(error)
    if isinstance(error, Unauthenticated):
        return see_other(f"/signin?next={quote(_back(request))}")
    return pages.error(request, error)


def _back(request: Request) -> str:
    """Return the page to go to after signing in: the one that was asked for, or the page that a form was on."""
    if request.method != "GET":
        page = urlsplit(request.headers.get("referer", ""))
        return page.path or "/" if page.netloc == request.headers.get("host") else "/"
    query = f"?{request.url.query}" if request.url.query else ""
    return request.url.path + query


def _is_for_people(request: Request) -> bool:
    is_api = request.url.path.startswith(API_PATHS)
    return not is_api and "text/html" in request.headers.get("accept", "")
