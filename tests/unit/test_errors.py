"""Errors on the wire: each class comes back as itself."""

from __future__ import annotations

import pytest

from guanaco.errors import GuanacoError, error_classes


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
