"""What is answered to an error that no service has foreseen."""

from __future__ import annotations

import pytest
from sqlalchemy import exc

from guanaco.errors import DatabaseUnavailable, InternalFault, InvalidInput
from guanaco_server.http.errors import as_guanaco_error, status_of

GONE = exc.OperationalError("SELECT 1", {}, OSError("gone"))
ALL_TAKEN = exc.TimeoutError("QueuePool limit of size 10 overflow 10 reached")


@pytest.mark.parametrize("error", [GONE, ALL_TAKEN])
def test_a_database_that_cannot_be_asked_now_is_worth_another_try(error: Exception) -> None:
    answered = as_guanaco_error("GET /", error)
    assert isinstance(answered, DatabaseUnavailable)
    assert status_of(answered) == 503


def test_a_character_that_no_database_holds_is_the_requests_fault() -> None:
    refused = exc.DataError("INSERT", {}, ValueError("NUL"))
    answered = as_guanaco_error("POST /", refused)
    assert isinstance(answered, InvalidInput)
    assert status_of(answered) == 422


def test_anything_else_is_told_by_a_number_and_not_by_its_text() -> None:
    answered = as_guanaco_error("GET /", ValueError("a user's words"))
    assert isinstance(answered, InternalFault)
    assert "words" not in str(answered)
