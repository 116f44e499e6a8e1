"""Calls about characters: cards in, cards out, and the bots that conversations begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from guanaco.calls.wire import API, Call, delete, get, keyed, patch, segment, to_json
from guanaco.characters import (
    CardFormat,
    Character,
    CharacterChanges,
    CharacterForm,
    CharacterPage,
    CharactersErased,
)
from guanaco.chat import Bot
from guanaco.contract import reader
from guanaco.lore import Lorebook

UPLOAD_TIMEOUT_S = 120.0
KINDS = {b"\x89PNG": "image/png", b"PK\x03\x04": "application/zip"}


def push_character(
    card: bytes | Mapping[str, Any] | CharacterForm,
    *,
    character_id: str | None = None,
    is_public: bool = False,
    idempotency_key: str | None = None,
) -> Call[Character]:
    """Store a character, or a new version of one. Developer or backend.

    Args:
        card: Our form, a Character Card V1, V2 or V3 as decoded JSON, or the bytes of a card's JSON, PNG or CHARX file.
        character_id: Of which character this is a new version. Without it, the character is new.
        is_public: Whether every account may read a new character and talk to it.
        idempotency_key: With a key, the request is sent again when the connection breaks, and done once.

    Returns:
        The Character, as it is then.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    content = _content(card)
    path = "/characters" if character_id is None else _of(character_id, "versions")
    return Call(
        method="POST",
        path=f"{API}{path}",
        params={"public": "true"} if is_public and character_id is None else {},
        content=content,
        headers={"Content-Type": KINDS.get(content[:4], "application/json")}
        | keyed(idempotency_key),
        parse=reader(Character).from_json,
        is_repeatable=idempotency_key is not None,
        timeout_s=UPLOAD_TIMEOUT_S,
    )


def characters(
    *, whose: Literal["own", "public"] = "own", cursor: str | None = None, limit: int = 50
) -> Call[CharacterPage]:
    """List one page of your own characters, or of everybody's public ones, newest first.

    Args:
        whose: ``own`` or ``public``.
        cursor: The ``next_cursor`` of the page before; None for the first page.
        limit: The most that are returned.

    Returns:
        The CharacterPage.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    params = {"whose": whose, "limit": str(limit)}
    return get("/characters", CharacterPage, params=params | ({"cursor": cursor} if cursor else {}))


def character(character_id: str, *, version: int | None = None) -> Call[Character]:
    """Read one version of a character, the newest where none is named.

    Args:
        character_id: The character's id.
        version: The version; None for the newest.

    Returns:
        The Character, as it is then.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return get(_of(character_id), Character, params=_versioned(version))


def change_character(character_id: str, *, is_public: bool) -> Call[Character]:
    """Make an own character public or private.

    Args:
        character_id: The character's id.
        is_public: Whether other accounts may use it.

    Returns:
        The Character, as it is then.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return patch(_of(character_id), Character, CharacterChanges(is_public=is_public))


def set_lorebook(
    character_id: str, book: Lorebook | None, *, version: int | None = None
) -> Call[Character]:
    """Store a new version of an own character with another lorebook, or with None without one.

    Args:
        character_id: The character.
        book: What takes the place of its lorebook.
        version: Of which version the rest is taken. The newest where none is named.

    Returns:
        The Character, as it is then.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return Call(
        method="DELETE" if book is None else "PUT",
        path=f"{API}{_of(character_id, 'lorebook')}",
        params=_versioned(version),
        json=None if book is None else to_json(book),
        parse=reader(Character).from_json,
    )


def character_card(
    character_id: str, *, format: CardFormat = "json", version: int | None = None
) -> Call[bytes]:
    """Export the card: as JSON exactly as it came, or in a PNG or a CHARX file.

    Args:
        character_id: The character's id.
        format: ``json``, ``png`` or ``charx``.
        version: The version; None for the newest.

    Returns:
        The bytes of the file.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return _bytes(_of(character_id, "card"), {"format": format} | _versioned(version))


def character_picture(character_id: str, *, version: int | None = None) -> Call[bytes]:
    """Read the character's picture.

    Args:
        character_id: The character's id.
        version: The version; None for the newest.

    Returns:
        The bytes of the file.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return _bytes(_of(character_id, "picture"), _versioned(version))


def character_bot(
    character_id: str,
    *,
    user_name: str = "You",
    seed: str = "",
    greeting: int = 0,
    version: int | None = None,
) -> Call[Bot]:
    """Make the bot that a conversation would begin with. The same seed gives the same bot.

    Args:
        character_id: The character's id.
        user_name: What the bot calls the user.
        seed: Makes random macros repeatable.
        greeting: Which of the character's greetings is the first message; -1 for none.
        version: The version; None for the newest.

    Returns:
        The Bot.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    params = {"user_name": user_name, "seed": seed, "greeting": str(greeting)}
    return get(_of(character_id, "bot"), Bot, params=params | _versioned(version))


def delete_character(character_id: str) -> Call[None]:
    """Delete an own character with all versions. Conversations that have begun go on.

    Args:
        character_id: The character's id.

    Raises:
        CharacterNotFound: There is no such character, or its owner keeps it private.
    """
    return delete(_of(character_id))


def erase_characters(*, account: str | None = None) -> Call[CharactersErased]:
    """Erase every character of your account for good; of another account's as an admin.

    Args:
        account: The account's name; None for your own.

    Returns:
        The CharactersErased.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return Call(
        method="DELETE",
        path=f"{API}/characters",
        params={} if account is None else {"account": account},
        parse=reader(CharactersErased).from_json,
    )


def _of(character_id: str, *rest: str) -> str:
    return "/".join(("/characters", segment(character_id), *rest))


def _versioned(version: int | None) -> dict[str, str]:
    return {} if version is None else {"version": str(version)}


def _content(card: bytes | Mapping[str, Any] | CharacterForm) -> bytes:
    if isinstance(card, bytes):
        return card
    if isinstance(card, CharacterForm):
        return card.model_dump_json(exclude_none=True).encode()
    return json.dumps(card).encode()


def _bytes(path: str, params: Mapping[str, str]) -> Call[bytes]:
    return Call(
        method="GET",
        path=f"{API}{path}",
        params=params,
        parse=bytes,
        is_repeatable=True,
        timeout_s=UPLOAD_TIMEOUT_S,
    )
