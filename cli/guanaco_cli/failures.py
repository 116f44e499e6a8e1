"""Turn an error into a sentence, a hint and an exit status."""

from __future__ import annotations

import os
import sys
import traceback

from guanaco.errors import GuanacoError, InvalidFormatter, InvalidInput, InvalidSettings
from guanaco_cli.console import console
from guanaco_cli.parameters import option_of

FAILED, WRONG_USE = 1, 2
WRONG_USE_ERRORS = (InvalidInput, InvalidFormatter, InvalidSettings)  # these, not their subclasses


def report(error: Exception) -> int:
    """Say on stderr what happened, and return the exit status."""
    if os.environ.get("GUANACO_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, GuanacoError):
        console.failure(error)
        return WRONG_USE if type(error) in WRONG_USE_ERRORS else FAILED
    if _is_validation_error(error):
        for sentence in _wrong_options(error):
            console.error(sentence)
        return WRONG_USE
    console.error(
        f"Something unexpected happened: {type(error).__name__}: {error}",
        "GUANACO_DEBUG=1 shows where; please report it.",
    )
    return FAILED


def _is_validation_error(error: Exception) -> bool:
    pydantic = sys.modules.get("pydantic")  # not imported yet: then it is not the source
    return pydantic is not None and isinstance(error, pydantic.ValidationError)


def _wrong_options(error: Exception) -> list[str]:
    from pydantic import ValidationError

    from guanaco.errors.validation import problems_of

    assert isinstance(error, ValidationError)
    return [_wrong_option(place, text) for place, text in problems_of(error)]


def _wrong_option(place: str, text: str) -> str:
    names = [part for part in place.split(".") if not part.isdigit()]
    if not names:
        return text
    name = names[-1]
    return f"{'REPO' if name == 'repo' else option_of(name)}: {text}"
