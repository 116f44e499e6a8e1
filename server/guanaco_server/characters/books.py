"""Reads the lorebook of a Character Card (`character_book`), as V2 and V3 write it.

A V3 entry may begin with decorators, lines of `@@name value`: `@@activate`, `@@dont_activate` and `@@scan_depth` are followed,
the others are left out. Entries that are switched off are left out too.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from guanaco.errors import InvalidCard, InvalidInput
from guanaco.errors.validation import one_sentence
from guanaco.lore import (
    MAX_ENTRIES,
    MAX_LORE_TOKENS,
    MAX_RECURSION,
    MAX_SCAN_DEPTH,
    Lorebook,
    LoreEntry,
)
from guanaco_server.lore.activation import require_usable

RECURSION = 3  # for a card's `recursive_scanning`, which names no limit
OWN = "guanaco"  # the extension in which a card keeps what only our form can say
DECORATOR = re.compile(r"\s*@@@*([A-Za-z_]+)[ \t]*([^\n]*)(?:\n|$)")


def read_book(data: dict[str, Any]) -> Lorebook | None:
    """Read the book of a card's data; None where it has none. InvalidCard in one sentence for a damaged one."""
    book = data.get("character_book")
    if book is None:
        return None
    if not isinstance(book, dict):
        raise InvalidCard("The card's character_book is not an object.")
    entries = book.get("entries", [])
    if isinstance(entries, dict):  # as some editors write them, by number
        entries = list(entries.values())
    if not isinstance(entries, list):
        raise InvalidCard("The lorebook's entries are not a list.")
    if len(entries) > MAX_ENTRIES:
        raise InvalidCard(f"The lorebook has {len(entries):,} entries; {MAX_ENTRIES} are allowed.")
    parsed = [_entry(number, entry) for number, entry in enumerate(entries)]
    read = Lorebook(
        entries=tuple(one for one in parsed if one is not None),
        scan_depth=min(_number(book, "scan_depth", 4, "lorebook"), MAX_SCAN_DEPTH),
        token_budget=min(_number(book, "token_budget", 512, "lorebook"), MAX_LORE_TOKENS),
        recursion=_recursion(book),
    )
    try:
        require_usable(read)
    except InvalidInput as error:
        raise InvalidCard(str(error), hint=error.hint) from None
    return read


def _recursion(book: dict[str, Any]) -> int:
    """Return how often to look again: as our own form said it, where that made the card."""
    if book.get("recursive_scanning") is not True:
        return 0
    extensions = book.get("extensions")
    own = extensions.get(OWN) if isinstance(extensions, dict) else None
    declared = own.get("recursion") if isinstance(own, dict) else None
    return declared if isinstance(declared, int) and 0 < declared <= MAX_RECURSION else RECURSION


def as_card_book(book: Lorebook) -> dict[str, Any]:
    """Return the book as a V3 card writes it."""
    return {
        "scan_depth": book.scan_depth,
        "token_budget": book.token_budget,
        "recursive_scanning": book.recursion > 0,
        "extensions": {OWN: {"recursion": book.recursion}},
        "entries": [_as_card_entry(one) for one in book.entries],
    }


def _as_card_entry(one: LoreEntry) -> dict[str, Any]:
    depth = "" if one.scan_depth is None else f"@@scan_depth {one.scan_depth}\n"
    return {
        "name": one.name,
        "keys": list(one.keys),
        "secondary_keys": list(one.secondary_keys),
        "selective": bool(one.secondary_keys),
        "content": depth + one.content,
        "constant": one.is_constant,
        "use_regex": one.is_regex,
        "case_sensitive": one.is_case_sensitive,
        "insertion_order": one.order,
        "priority": one.priority,
        "enabled": True,
        "extensions": {},
    }


def _entry(number: int, entry: Any) -> LoreEntry | None:
    where = f"lorebook's entry {number}"
    if not isinstance(entry, dict):
        raise InvalidCard(f"The {where} is not an object.")
    content, decorators = _undecorated(_text(entry, "content", where))
    if entry.get("enabled", True) is False or "dont_activate" in decorators:
        return None
    is_selective = entry.get("selective") is not False
    depth = decorators.get("scan_depth", "")
    try:
        return LoreEntry(
            content=content.strip(),
            keys=_keys(entry, "keys", where),
            secondary_keys=_keys(entry, "secondary_keys", where) if is_selective else (),
            is_constant=entry.get("constant") is True or "activate" in decorators,
            is_regex=entry.get("use_regex") is True,
            is_case_sensitive=entry.get("case_sensitive") is True,
            order=_number(entry, "insertion_order", 100, where, least=-(2**31)),
            priority=_number(entry, "priority", 0, where, least=-(2**31)),
            scan_depth=min(int(depth[:4]), MAX_SCAN_DEPTH) if _is_number(depth) else None,
            name=_text(entry, "name", where)[:200],
        )
    except ValidationError as error:
        raise InvalidCard(f"The {where} cannot be used: {one_sentence(error)}") from None


def _undecorated(content: str) -> tuple[str, dict[str, str]]:
    """Return the content, and the decorators before it; a line with a third ``@`` says what stands in for one."""
    decorators: dict[str, str] = {}
    while found := DECORATOR.match(content):
        decorators[found[1].lower()] = found[2].strip()
        content = content[found.end() :]
    return content, decorators


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidCard(f"The {where} has a {name} that is not a text.")
    return value.replace("\x00", "")


def _keys(entry: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    keys = entry.get(name)
    if keys is None:
        return ()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InvalidCard(f"The {where} has {name} that are not a list of texts.")
    return tuple(key for key in keys if key.strip())


def _number(value: dict[str, Any], name: str, default: int, where: str, least: int = 0) -> int:
    """Return a number as editors write them, whole ones with a point too."""
    number = value.get(name)
    if number is None:
        return default
    is_whole = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_whole or number != number or not least <= number < 2**31:
        raise InvalidCard(f"The {where} has a {name} that is not a number in range.")
    return int(number)
