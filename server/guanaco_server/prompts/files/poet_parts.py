"""Reads the parts of a prompt from the YAML that a template in Prompt Poet's form has made.

It runs in the template process, whose CPU time and memory are limited, because a stranger wrote the YAML. All values are texts there,
also ``12`` and ``true``: only a ``truncation_priority`` is read as a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from guanaco_server.formats.yaml_texts import Tree, UnreadableYaml, read_texts

SPACE_MARKER = "<|space|>"
MAX_PARTS = 4_000
MAX_EVENTS = 20 * MAX_PARTS  # a part has ten, and may have fields that nobody reads
MAX_NAME_CHARS = 64  # in errors
ROLES = ("system", "user", "assistant")
NUMBER = re.compile(r"[-+]?[0-9]{1,9}", re.ASCII)
NO_NUMBER = ("", "~", "null", "Null", "NULL")
MEANT = "\n\r\t\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff:#{}[]&*!|>'\"%@`,-?\\<"
EXCHANGED = {ord(char): 0x10E000 + place for place, char in enumerate(MEANT)}
RESTORED = {private: ord(char) for char, private in zip(MEANT, EXCHANGED.values(), strict=True)}
NEWEST = chr(0x10F000)  # before the user's newest message, so that its part is known and never cut


@dataclass(frozen=True)
class PoetPart:
    name: str
    content: str
    role: str
    priority: int


def read_parts(text: str) -> list[PoetPart]:
    """Return the parts in a text. ValueError says what is wrong with it, as the end of a sentence."""
    try:
        found = read_texts(text, max_events=MAX_EVENTS)
    except UnreadableYaml as error:
        raise ValueError(f"what it makes cannot be read: {error}") from None
    if not isinstance(found, list) or not found:
        raise ValueError("what it makes is no list of parts")
    if len(found) > MAX_PARTS:
        raise ValueError(f"it makes more than {MAX_PARTS:,} parts")
    return [_part(number, one) for number, one in enumerate(found, 1)]


def _part(number: int, given: Tree) -> PoetPart:
    if not isinstance(given, dict) or "content" not in given:
        raise ValueError(f"its part {number} has no content")
    name = _text(number, given, "name") or str(number)
    role = _text(number, given, "role") or "user"
    priority = _text(number, given, "truncation_priority")
    if priority not in NO_NUMBER and not NUMBER.fullmatch(priority):
        raise ValueError(
            f"the truncation_priority of its part {name[:MAX_NAME_CHARS]!r} is no number"
        )
    if role not in ROLES:
        raise ValueError(
            f"the role of its part {name[:MAX_NAME_CHARS]!r} is none of {', '.join(ROLES)}"
        )
    content = _text(number, given, "content").strip().replace(SPACE_MARKER, " ")
    content = content.replace("\\n", "\n").replace("\\r", "\r")
    is_newest = NEWEST in content
    return PoetPart(
        name,
        content.replace(NEWEST, "").translate(RESTORED),
        role,
        0 if is_newest or priority in NO_NUMBER else int(priority),
    )


def _text(number: int, given: dict[str, Tree], field: str) -> str:
    value = given.get(field, "")
    if not isinstance(value, str):
        raise ValueError(f"the {field} of its part {number} is no text")
    return value
