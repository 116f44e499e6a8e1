"""Turn an error into a sentence, a hint and an exit status."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from guanaco.errors import GuanacoError, InvalidFormatter, InvalidInput, InvalidSettings
from guanaco_cli.console import console
from guanaco_cli.parameters import options_by_field

FAILED, WRONG_USE = 1, 2
WRONG_USE_ERRORS = (InvalidInput, InvalidFormatter, InvalidSettings)  # these, not their subclasses


STREAM_FAULTS = frozenset({errno.EBADF, errno.EIO, errno.EISDIR})
"""A standard stream that is open the other way, is a folder, or belongs to a terminal that is gone."""

FIELDS = {"alias": "name", "environment": "env", "metadata": "notes", "user_id": "user"}
"""Fields of requests whose option or argument has another name."""

PLACES = re.compile(r"(?:^|(?<=; )|(?<=\. ))[a-z_]+(?:\.\w+)*(?=: )")
WITHIN = re.compile(r"\b(?:params\.)?([a-z]+(?:_[a-z]+)+)\b")


def report(error: Exception, app: typer.Typer, arguments: Sequence[str] = ()) -> int:
    """Say on stderr what happened, and return the exit status.

    Args:
        error: What a command has raised.
        app: The commands, of which the one that ran tells how it calls what is wrong.
        arguments: What was typed.
    """
    if os.environ.get("GUANACO_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, GuanacoError):
        console.error(*_with_options(error, app, arguments))
        return WRONG_USE if type(error) in WRONG_USE_ERRORS else FAILED
    if _is_validation_error(error):
        for sentence in _wrong_options(error, _spellings(app, arguments)):
            console.error(sentence)
        return WRONG_USE
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f": {error.filename}" if error.filename else ""
        console.error(
            f"The disk is full{place}.", "Make room: `guanaco doctor` shows how much is left."
        )
        return FAILED
    if isinstance(error, OSError) and error.filename is not None:
        console.error(f"{error.filename}: {error.strerror}.")
        return FAILED
    if isinstance(error, UnicodeDecodeError):
        console.error("The input is no text in UTF-8.", "Convert it first, as with iconv.")
        return WRONG_USE
    if isinstance(error, OSError) and error.errno in STREAM_FAULTS:
        console.error(f"Reading or writing failed: {error.strerror}.")
        return FAILED
    console.error(
        f"Something unexpected happened: {type(error).__name__}: {error}",
        "GUANACO_DEBUG=1 shows where; please report it.",
    )
    return FAILED


def _is_validation_error(error: Exception) -> bool:
    pydantic = sys.modules.get("pydantic")  # not imported yet: then it is not the source
    return pydantic is not None and isinstance(error, pydantic.ValidationError)


def _with_options(
    error: GuanacoError, app: typer.Typer, arguments: Sequence[str]
) -> tuple[str, str | None]:
    """Return detail and hint, with options and arguments in the place of a request's fields: ``--tag`` for ``tag.0``.

    A file whose name was typed keeps it.
    """
    if not isinstance(error, InvalidInput):
        return error.detail, error.hint
    names = _spellings(app, arguments)

    def named(place: re.Match[str]) -> str:
        is_file = "." in place[0] and place[0] in arguments
        return place[0] if is_file else _spelled(place[0], names) or place[0]

    detail = PLACES.sub(named, error.detail)
    return _name_options(detail, names), error.hint and _name_options(error.hint, names)


def _wrong_options(error: Exception, names: dict[str, str]) -> list[str]:
    from pydantic import ValidationError

    from guanaco.errors.validation import problems_of

    assert isinstance(error, ValidationError)
    problems = [(place, _name_options(text, names)) for place, text in problems_of(error)]
    return [
        f"{_spelled(place, names) or place}: {text}" if place else text for place, text in problems
    ]


def _name_options(text: str, names: dict[str, str]) -> str:
    return WITHIN.sub(lambda found: names.get(found[1], found[0]), text)


def _spelled(place: str, names: dict[str, str]) -> str | None:
    """Return how the command calls a place in a request: its innermost part that the command knows."""
    for part in reversed(place.split(".")):
        for name in (FIELDS.get(part, part), part.removesuffix("s")):
            if name in names:
                return names[name]
    return None


def _spellings(app: typer.Typer, arguments: Sequence[str]) -> dict[str, str]:
    """Return the options and arguments of the command that was typed, by the names of the fields that they set."""
    command = _tree(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    names = options_by_field(command)
    for param in command.params:
        if param.param_type_name == "argument":
            shown = (param.metavar or param.name.upper()).strip("[].…")
            names |= {param.name: shown, shown.lower(): shown}
        else:
            shown = max(param.opts, key=len)
            names |= {param.name: shown, shown.removeprefix("--").replace("-", "_"): shown}
    return names


@cache
def _tree(app: typer.Typer) -> Any:
    """Build the tree of all commands, once in a process: that takes longer than most commands do."""
    return typer.main.get_command(app)
