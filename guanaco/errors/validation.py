"""Words pydantic's validation errors for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def problems_of(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield, for each problem, where it is (``params.temperature``; empty for the whole) and one sentence."""
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ").rstrip(".")
        yield place, f"{message}."


def one_sentence(error: ValidationError) -> str:
    """Join all problems into one line."""
    return " ".join(f"{place}: {text}" if place else text for place, text in problems_of(error))
