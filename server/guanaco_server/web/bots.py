"""The characters of the chat page: those that ship with Guanaco, or an operator's own file."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from guanaco.bots import BOTS
from guanaco.chat import Bot
from guanaco.errors import InvalidSettings
from guanaco.errors.validation import one_sentence
from guanaco.forms import Slug

_FILE = TypeAdapter(dict[Slug, Bot])


def read_bots(path: Path | None) -> dict[str, Bot]:
    """Read the bots by short name from a TOML file with a table for each; raise InvalidSettings if it cannot be used."""
    if path is None:
        return BOTS
    try:
        bots = _FILE.validate_python(tomllib.loads(path.read_text()))
    except OSError as error:
        raise InvalidSettings(f"web_bots: {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"web_bots: {path} is not TOML: {error}.") from None
    except ValidationError as error:
        raise InvalidSettings(f"web_bots: {path}: {one_sentence(error)}") from None
    if not bots:
        raise InvalidSettings(f"web_bots: {path} holds no bot.")
    return bots
