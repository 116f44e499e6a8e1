"""Turns errors into HTTP answers: one table, and one sentence for whatever was not foreseen.

Errors have one form, ``ErrorBody``. Paths that speak another protocol have that protocol's (``ErrorForms``).
"""

from __future__ import annotations

import logging
import math
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from starlette.exceptions import HTTPException

from guanaco import errors
from guanaco.errors.validation import plain_words, true_problems

STATUS_BY_CLASS: dict[type[errors.GuanacoError], int] = {
    errors.PayloadTooLarge: 413,
    errors.HeaderTooLarge: 431,
    errors.MalformedRequest: 400,
    errors.RequestTimedOut: 408,
    errors.MethodNotAllowed: 405,
    errors.InvalidInput: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.TooManyRatings: 429,
    errors.TooManyAttempts: 429,
    errors.TooManySubmissions: 429,
    errors.ModelTimedOut: 504,
    errors.Unavailable: 503,
    errors.ClusterUnreachable: 503,
    errors.ClusterRefused: 500,
    errors.StoreUnreachable: 503,
    errors.SubmissionFailure: 422,
    errors.ExportUnsupported: 501,
    errors.InvalidSettings: 500,
    errors.InternalFault: 500,
    errors.GuanacoError: 500,
}

KNOWS_WHEN = (
    errors.Unavailable,
    errors.TooManyRatings,
    errors.TooManyAttempts,
    errors.TooManySubmissions,
    errors.ConversationBusy,
    errors.RequestInProgress,
)
DATABASE_AWAY = (OperationalError, InterfaceError, NoConnectionLeft)
POSTGRESQL_DISK_FULL = "53100"
RETRY_AFTER_S = {429: "60", 503: "5", 504: "5"}

logger = logging.getLogger(__name__)


class ErrorBody(BaseModel):
    """The body of an error's answer."""

    error: str = Field(description="The error's stable code. It stays the same between versions.")
    detail: str = Field(description="One sentence for a person.")
    hint: str | None = Field(description="What to do next.")


def status_of(error: errors.GuanacoError) -> int:
    """Return the status of an error's nearest class in the table."""
    return status_of_class(type(error))


def status_of_class(kind: type[errors.GuanacoError]) -> int:
    return next(STATUS_BY_CLASS[base] for base in kind.__mro__ if base in STATUS_BY_CLASS)


def answer(error: errors.GuanacoError) -> JSONResponse:
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, errors.MethodNotAllowed):
        headers["Allow"] = error.allowed
    if seconds := _retry_after(error) or RETRY_AFTER_S.get(status):
        headers["Retry-After"] = seconds
    return JSONResponse(error.to_wire(), status_code=status, headers=headers)


def _retry_after(error: errors.GuanacoError) -> str | None:
    """Return the seconds after which the error says to try again, at least 1; None if it does not say."""
    if not isinstance(error, KNOWS_WHEN):
        return None
    seconds = error.retry_after_s
    return None if seconds is None else str(max(1, math.ceil(seconds)))


@dataclass(frozen=True)
class ErrorForm:
    """The form in which errors are answered: ``body`` describes the JSON that ``answer`` writes, ``statuses`` has those that differ from ours."""

    answer: Callable[[errors.GuanacoError], Response] = answer
    body: type[BaseModel] = ErrorBody
    statuses: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorForms:
    """The form of our own API, and others by the beginning of the path."""

    others: Mapping[str, ErrorForm] = field(default_factory=dict)
    ours: ErrorForm = ErrorForm()

    def of(self, path: str) -> ErrorForm:
        return next(
            (form for prefix, form in self.others.items() if path.startswith(prefix)), self.ours
        )


def install(app: FastAPI, forms: ErrorForms) -> None:
    """Give the app these answers for every error there can be."""

    def tell(request: Request, error: errors.GuanacoError) -> Response:
        return forms.of(request.url.path).answer(error)

    @app.exception_handler(errors.GuanacoError)
    async def guanaco_error(request: Request, error: errors.GuanacoError) -> Response:
        return tell(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = error.errors()
        detail = _unreadable(request, problems) or describe_problems(problems)
        return tell(request, errors.InvalidInput(detail))

    async def of_database(request: Request, error: Exception) -> Response:
        """Answer here what would else be raised again after its answer, and logged with its whole stack."""
        return tell(request, as_guanaco_error(f"{request.method} {request.url.path}", error))

    for kind in (DataError, *DATABASE_AWAY):
        app.add_exception_handler(kind, of_database)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # FastAPI could not decode the body
            return tell(request, errors.InvalidInput("The request's body is not JSON in UTF-8."))
        if error.status_code == 404:
            return tell(request, errors.NotFound(f"There is nothing at {request.url.path}."))
        if error.status_code == 405:
            allowed = ", ".join(_methods_at(app, request))
            refused = errors.MethodNotAllowed(request.method, request.url.path, allowed)
            return tell(request, refused)
        message = f"{error.detail}: {request.method} {request.url.path}."
        body = tell(request, errors.GuanacoError(message)).body
        return Response(body, error.status_code, error.headers, media_type="application/json")

    @app.exception_handler(Exception)
    async def internal_error_response(request: Request, error: Exception) -> Response:
        return tell(request, as_guanaco_error(f"{request.method} {request.url.path}", error))


def _methods_at(app: FastAPI, request: Request) -> list[str]:
    """Return the methods of all routes that have the request's path."""
    path = request.scope["path"]
    found = {
        method
        for route in app.router.routes
        if (pattern := getattr(route, "path_regex", None)) and pattern.match(path)
        for method in getattr(route, "methods", None) or ()
    }
    return sorted(found)


def _unreadable(request: Request, problems: Sequence[Any]) -> str | None:
    """Tell why a body was not read as JSON at all; None where it was."""
    (first, *_) = problems
    if first["type"] == "json_invalid":
        why = str(first.get("ctx", {}).get("error", "")).rstrip(".")
        return f"The request's body is not JSON: {why}, at character {first['loc'][-1]}."
    is_json = "json" in request.headers.get("content-type", "").lower()
    if tuple(first["loc"]) == ("body",) and isinstance(first.get("input"), bytes) and not is_json:
        return "The request's body is read as JSON only with the header Content-Type: application/json."
    return None


def as_guanaco_error(what: str, error: Exception) -> errors.GuanacoError:
    """Itself, or what says as much as may be said of it."""
    if isinstance(error, errors.GuanacoError):
        return error
    if _has_no_room(error):
        logger.error("%s: the database's disk is full: %s", what, _first_line(error))
        return errors.DatabaseUnavailable.without_room()
    if isinstance(error, DATABASE_AWAY):
        logger.warning("%s: the database does not answer: %s", what, _first_line(error))
        return errors.DatabaseUnavailable()
    if isinstance(error, DataError):  # PostgreSQL refuses a NUL in a text, and rolls back
        return errors.InvalidInput("The request holds a character that cannot be stored.")
    return internal_fault(what, error)


def _has_no_room(error: Exception) -> bool:
    """Tell whether the database could not write because its disk is full."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    is_full = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return is_full or getattr(cause, "sqlstate", None) == POSTGRESQL_DISK_FULL


def _first_line(error: Exception) -> str:
    """Return the first line of the error, without the SQL statement."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def internal_fault(what: str, error: BaseException) -> errors.InternalFault:
    """Log an unforeseen error under a new incident number."""
    incident = uuid.uuid4().hex[:8]
    logger.error("incident %s in %s", incident, what, exc_info=error)
    return errors.InternalFault(incident)


def describe_problems(problems: Sequence[Any]) -> str:
    """pydantic's problems as one sentence: where, and what is wrong there. Where a value may be written in several ways, the first counts."""
    told: dict[str, str] = {}
    for problem in true_problems(problems):
        told.setdefault(_place(problem), _describe(problem))
    return "; ".join(told.values()) + "."


def _describe(problem: Any) -> str:
    if tuple(problem["loc"]) == ("body",) and problem["type"] == "missing":
        return "The request has no body, which should be JSON"
    place, message = _place(problem), plain_words(problem)
    return f"{place}: {message}" if place else message


def _place(problem: Any) -> str:
    """Name the field; parts with brackets are names of validators."""
    return ".".join(
        str(part)
        for part in problem["loc"]
        if part not in ("body", "query", "header", "path") and "[" not in str(part)
    )
