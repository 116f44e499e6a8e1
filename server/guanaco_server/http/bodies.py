"""Refuses JSON bodies that hold what no database of the platform can store."""

from __future__ import annotations

import json
from typing import Any

from guanaco.errors import InvalidInput

ESCAPED_NUL = b"\\u0000"  # in JSON; a plain NUL is no JSON


def _refuse_nul(value: Any, place: str = "") -> None:
    """Raise InvalidInput, which names the place, where a text within has a NUL."""
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput(
            f"{place or 'body'}: There is a NUL in the text, which cannot be stored."
        )
    if isinstance(value, dict):
        if any("\0" in name for name in value):
            raise InvalidInput(
                f"{place or 'body'}: There is a NUL in a name, which cannot be stored."
            )
        for name, inner in value.items():
            _refuse_nul(inner, f"{place}.{name}" if place else name)
    if isinstance(value, list):
        for number, inner in enumerate(value):
            _refuse_nul(inner, f"{place}.{number}" if place else str(number))


def refuse_nul(body: bytes) -> None:
    """Raise InvalidInput where a text in this JSON has a NUL. A body that is no JSON passes: whoever reads it says so."""
    if ESCAPED_NUL not in body:
        return
    try:
        _refuse_nul(json.loads(body))
    except RecursionError:
        raise InvalidInput("The request's body is nested too deeply.") from None
    except ValueError:
        return
