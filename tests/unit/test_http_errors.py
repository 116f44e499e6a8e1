"""Tests what is answered to an error that no service has foreseen."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import httpx
import pytest
from fastapi import FastAPI
from pydantic import AfterValidator, TypeAdapter, ValidationError
from sqlalchemy import exc

from guanaco.errors import DatabaseUnavailable, InternalFault, InvalidInput
from guanaco_server.http.errors import (
    ErrorForms,
    as_guanaco_error,
    describe_problems,
    install,
    status_of,
)

GONE = exc.OperationalError("SELECT 1", {}, OSError("gone"))
ALL_TAKEN = exc.TimeoutError("QueuePool limit of size 10 overflow 10 reached")


CLOSED = exc.InterfaceError("SELECT 1", {}, OSError("the connection is closed"))


@pytest.mark.parametrize("error", [GONE, CLOSED, ALL_TAKEN])
def test_unreachable_database_is_worth_a_retry(error: Exception) -> None:
    answered = as_guanaco_error("GET /", error)
    assert isinstance(answered, DatabaseUnavailable)
    assert status_of(answered) == 503


def test_a_character_that_no_database_holds_is_the_requests_fault() -> None:
    refused = exc.DataError("INSERT", {}, ValueError("NUL"))
    answered = as_guanaco_error("POST /", refused)
    assert isinstance(answered, InvalidInput)
    assert status_of(answered) == 422


def test_other_errors_are_reported_by_number_not_by_text() -> None:
    answered = as_guanaco_error("GET /", ValueError("a user's words"))
    assert isinstance(answered, InternalFault)
    assert "words" not in str(answered)


@pytest.mark.parametrize("error", [GONE, CLOSED, ALL_TAKEN])
async def test_an_outage_of_the_database_is_logged_in_one_line(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that a framework's outermost handler answers is raised again, and logged with its whole stack."""
    app = FastAPI()
    install(app, ErrorForms())

    @app.get("/")
    async def fail() -> None:
        raise error

    transport = httpx.ASGITransport(app)  # raises what the app raises
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/")
    assert (answer.status_code, answer.json()["error"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"] == "2"
    (line,) = (record for record in caplog.records if record.name.startswith("guanaco"))
    assert line.exc_info is None
    assert "\n" not in line.getMessage()


def test_the_first_way_to_write_a_value_is_told() -> None:
    either = TypeAdapter(list[Annotated[Literal["a", "b"], AfterValidator(str)] | Literal[""]])
    with pytest.raises(ValidationError) as raised:
        either.validate_python(["bogus"])
    told = describe_problems(raised.value.errors())
    assert told.count("0:") == 1
    assert "[" not in told
    assert "'a' or 'b'" in told


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "full.db")) as connection:
        connection.execute("CREATE TABLE words (word TEXT)")
        connection.execute("PRAGMA max_page_count=3")
        with pytest.raises(sqlite3.OperationalError) as raised:
            connection.execute("INSERT INTO words VALUES (?)", ("word" * 10_000,))
    answered = as_guanaco_error("a write", exc.OperationalError("INSERT", None, raised.value))
    assert isinstance(answered, DatabaseUnavailable)
    assert answered.detail == "The platform's disk is full, so nothing can be stored."
