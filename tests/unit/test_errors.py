"""Errors on the wire: each class comes back as itself."""

from __future__ import annotations

import pytest

from guanaco.errors import GuanacoError, IllegalTransition, error_classes


@pytest.mark.parametrize("code", sorted(error_classes()))
def test_every_class_comes_back_from_the_wire(code: str) -> None:
    sent = {"error": code, "detail": "It failed.", "hint": "Try again."}
    back = GuanacoError.from_wire(sent)
    assert type(back) is error_classes()[code]
    assert str(back) == "It failed."
    assert back.to_wire() == sent


@pytest.mark.parametrize("body", [{}, {"error": None}, {"error": ["not_found"]}, {"error": "gone"}])
def test_an_unknown_code_is_a_plain_error(body: dict[str, object]) -> None:
    assert type(GuanacoError.from_wire(body)) is GuanacoError


def test_a_submission_that_is_there_already_is_said_so() -> None:
    assert IllegalTransition("a_v1", "inactive", "inactive").detail == "a_v1 is inactive already."


def test_reactivating_what_ended_leads_to_a_redeploy() -> None:
    assert "guanaco redeploy a_v1" in (
        IllegalTransition("a_v1", "torn_down", "deployed").hint or ""
    )
    assert "guanaco status a_v1" in (IllegalTransition("a_v1", "checking", "deployed").hint or "")
