"""Words pydantic's validation errors for people: the one place for the API, the command line and the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

MAPPING = "It should map names to values"
PATTERNS = {
    r"^[^\x00]*$": "It should have no null character",
    r"^[!-~]+$": "It should be ASCII letters, digits and signs, without spaces",
    "^[a-z][a-z0-9_]{0,63}$": "It should be small letters, digits and underscores, at most 64, and begin with a letter",
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": "It should be small letters, digits and dashes inside, at most 63",
}


def problems_of(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield, for each problem, where it is (``params.temperature``; empty for the whole) and one sentence."""
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"])
        yield place, f"{plain_words(problem)}."


def one_sentence(error: ValidationError) -> str:
    """Join all problems into one line."""
    return " ".join(f"{place}: {text}" if place else text for place, text in problems_of(error))


def plain_words(problem: Mapping[str, Any]) -> str:
    """Say what one of pydantic's problems is, without a full stop and without the names of Python's types."""
    write = BY_TYPE.get(problem["type"])
    if write is not None and (written := write(problem)) is not None:
        return written
    return str(problem["msg"]).removeprefix("Value error, ").rstrip(".")


def _mapping(problem: Mapping[str, Any]) -> str:
    return f"{MAPPING}, and is empty" if problem.get("input", "") is None else MAPPING


def _too_short(problem: Mapping[str, Any]) -> str:
    limits = problem["ctx"]
    return f"It should have at least {_items(limits['min_length'])}, and has {_number(limits['actual_length'])}"


def _too_long(problem: Mapping[str, Any]) -> str:
    limits = problem["ctx"]
    actual = limits.get("actual_length")
    has = f", and has {_number(actual)}" if actual is not None else ""
    return f"It should have at most {_items(limits['max_length'])}{has}"


def _time_zone(_problem: Mapping[str, Any]) -> str:
    return "It should have a time zone, like 2026-01-31T09:00Z or 2026-01-31T09:00+01:00"


def _pattern(problem: Mapping[str, Any]) -> str | None:
    return PATTERNS.get(problem["ctx"]["pattern"])


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


BY_TYPE: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
    "model_type": _mapping,
    "model_attributes_type": _mapping,
    "dataclass_type": _mapping,
    "dict_type": _mapping,
    "mapping_type": _mapping,
    "too_short": _too_short,
    "too_long": _too_long,
    "timezone_aware": _time_zone,
    "string_pattern_mismatch": _pattern,
}
