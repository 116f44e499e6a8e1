"""The characters of the chat page: those that ship with Guanaco, or an operator's own file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from guanaco.bots import BOTS
from guanaco.chat import Bot
from guanaco.errors import InvalidSettings
from guanaco.errors.validation import one_sentence
from guanaco.forms import Slug


class StoredBot(BaseModel):
    """A stored character that is public, by its id: the newest version, or one as ``ID@3``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    character: str = Field(pattern=r"^chr_[0-9a-f]{32}(@[1-9][0-9]{0,8})?$")


WebBot = Bot | StoredBot
_BOTS, _STORED = TypeAdapter(dict[Slug, Bot]), TypeAdapter(dict[Slug, StoredBot])


def read_bots(path: Path | None) -> Mapping[str, WebBot]:
    """Read the bots by short name from a TOML file with a table for each; raise InvalidSettings if it cannot be used."""
    if path is None:
        return BOTS
    try:
        bots = _parsed(tomllib.loads(path.read_text()))
    except OSError as error:
        raise InvalidSettings(f"web_bots: {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"web_bots: {path} is not TOML: {error}.") from None
    except ValidationError as error:
        raise InvalidSettings(f"web_bots: {path}: {one_sentence(error)}") from None
    if not bots:
        raise InvalidSettings(f"web_bots: {path} holds no bot.")
    return bots


def _parsed(tables: dict[str, Any]) -> dict[str, WebBot]:
    """Read each table as what it is, in the file's order."""
    stored = {
        key for key, table in tables.items() if isinstance(table, dict) and "character" in table
    }
    found: dict[str, WebBot] = {
        **_BOTS.validate_python({key: tables[key] for key in tables if key not in stored}),
        **_STORED.validate_python({key: tables[key] for key in tables if key in stored}),
    }
    return {key: found[key] for key in tables}
