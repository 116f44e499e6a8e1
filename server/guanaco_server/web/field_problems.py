"""Says what is wrong with a form's fields, in words for whoever filled it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from guanaco.errors.validation import plain_words
from guanaco_server.web.words import spoken

NUMBER = "Write a number, like 0.8."
WHOLE_NUMBER = "Write a whole number, like 40."
TIME = "Write a day and a time, like 2026-01-31T09:00."
SENTENCES: dict[str, str] = {
    "missing": "Fill this in.",
    "float_parsing": NUMBER,
    "float_type": NUMBER,
    "finite_number": NUMBER,
    "int_parsing": WHOLE_NUMBER,
    "int_parsing_size": "Write a smaller number.",
    "int_type": WHOLE_NUMBER,
    "int_from_float": WHOLE_NUMBER,
    "datetime_parsing": TIME,
    "datetime_from_date_parsing": TIME,
    "timezone_aware": TIME,
    "extra_forbidden": "There is no such field.",
}
WITH_LIMIT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda limit: f"It must be over {_figure(limit['gt'])}.",
    "greater_than_equal": lambda limit: f"It must be {_figure(limit['ge'])} or more.",
    "less_than": lambda limit: f"It must be under {_figure(limit['lt'])}.",
    "less_than_equal": lambda limit: f"It must be {_figure(limit['le'])} or less.",
    "string_too_short": lambda limit: f"Write at least {_letters(limit['min_length'])}.",
    "string_too_long": lambda limit: f"Write at most {_letters(limit['max_length'])}.",
    "too_long": lambda limit: f"Write at most {limit['max_length']}.",
    "enum": lambda limit: f"Choose one of {limit['expected'].replace(chr(39), '')}.",
    "literal_error": lambda limit: f"Choose one of {limit['expected'].replace(chr(39), '')}.",
}


def field_problems(error: ValidationError) -> dict[str, str]:
    """Return a sentence for each field that is wrong, by its own name; by "" what is wrong with the whole."""
    found: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_input=False):
        names = [part for part in problem["loc"] if isinstance(part, str)]
        found.setdefault(names[-1] if names else "", _sentence(problem))
    return found


def in_short(problems: Mapping[str, str]) -> str:
    """Name the fields, for the head of the form."""
    if "" in problems:
        return problems[""]
    return f"{', '.join(spoken(name) for name in problems)}."


def _sentence(problem: Mapping[str, Any]) -> str:
    kind, limits = problem["type"], problem.get("ctx", {})
    if kind in SENTENCES:
        return SENTENCES[kind]
    if kind in WITH_LIMIT:
        return WITH_LIMIT[kind](limits)
    return f"{plain_words(problem)}."


def _figure(limit: float) -> str:
    return f"{limit:,g}" if abs(limit) < 1_000_000 else f"{limit:,.0f}"


def _letters(count: int) -> str:
    return "one character" if count == 1 else f"{count} characters"
