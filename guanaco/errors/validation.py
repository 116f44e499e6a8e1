"""Words pydantic's validation errors for people: the one place for the API, the command line and the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_Problem = TypeVar("_Problem", bound=Mapping[str, Any])

MAPPING = "It should map names to values"
PATTERNS = {
    r"^[^\x00]*$": "It should have no null character",
    r"^[!-~]+$": "It should be ASCII letters, digits and signs, without spaces",
    "^[a-z][a-z0-9_]{0,63}$": "It should be small letters, digits and underscores, at most 64, and begin with a letter",
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": "It should be small letters, digits and dashes inside, at most 63",
}


def problems_of(
    error: ValidationError, model: type[BaseModel] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield, for each problem, where it is (``params.temperature``; empty for the whole) and one sentence.

    Args:
        error: What pydantic found.
        model: The model that was validated, whose nearest field is named where one does not exist.
    """
    for problem in true_problems(error.errors(include_url=False)):
        place = ".".join(str(part) for part in problem["loc"])
        meant = _meant(problem, model)
        yield place, f"{plain_words(problem)}{meant}."


def true_problems(problems: Iterable[_Problem]) -> Iterator[_Problem]:
    """Yield the problems without lists that seem too short because faulty items are not counted."""
    for problem in problems:
        given = problem.get("input")
        if problem["type"] != "too_short" or not isinstance(given, Sized):
            yield problem
        elif len(given) < problem["ctx"]["min_length"]:
            limits = {**problem["ctx"], "actual_length": len(given)}
            yield cast(_Problem, {**problem, "ctx": limits})


def one_sentence(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Join all problems into one line."""
    return " ".join(
        f"{place}: {text}" if place else text for place, text in problems_of(error, model)
    )


def plain_words(problem: Mapping[str, Any]) -> str:
    """Say what one of pydantic's problems is, without a full stop and without the names of Python's types."""
    write = BY_TYPE.get(problem["type"])
    if write is not None and (written := write(problem)) is not None:
        return written
    return str(problem["msg"]).removeprefix("Value error, ").rstrip(".")


def _meant(problem: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    """Name the field that an unknown one is nearest to."""
    if model is None or problem["type"] != "extra_forbidden":
        return ""
    *place, name = (str(part) for part in problem["loc"])
    near = get_close_matches(name, _fields_at(model, place), n=1)
    return f"; perhaps you mean {near[0]}" if near else ""


def _fields_at(annotation: Any, place: list[str]) -> list[str]:
    """Return the names of the fields at a place in a model, or in any of the types of a union."""
    fields = getattr(annotation, "model_fields", None)
    if fields is None:
        return [name for part in get_args(annotation) for name in _fields_at(part, place)]
    if not place:
        return list(fields)
    if place[0] in fields:
        return _fields_at(fields[place[0]].annotation, place[1:])
    return _fields_at(annotation, place[1:])  # the number of an item, or the tag of a union


def _unknown_field(_problem: Mapping[str, Any]) -> str:
    return "There is no such field"


def _only(problem: Mapping[str, Any]) -> str | None:
    """Say the one value that is possible, as JSON writes it."""
    expected = str(problem["ctx"]["expected"])
    written = {"True": "true", "False": "false", "None": "null"}.get(expected, expected)
    return None if " or " in expected else f"It can only be {written} here"


def _null(_problem: Mapping[str, Any]) -> str:
    return "It can only be null here"


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
    "extra_forbidden": _unknown_field,
    "literal_error": _only,
    "none_required": _null,
}
