"""Expands the macros of a card's texts: ``{{char}}``, ``{{random:a,b}}``, ``{{roll:d6}}`` and the like.

A text is read once, from left to right. What a macro gives is not read again, so a user's name cannot hold one. Macros may
be nested MAX_DEPTH deep. A macro that is not known stays as it is written.

Chance is a hash of the conversation's seed. So every process gives a conversation the same text, now and later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_DEPTH = 8
MAX_DICE = 20  # of a million sides each, all of one hash
MAX_SIDES = 1_000_000
# The last two of three opening braces open a macro, so "{{{char}}}" is a name in braces.
BRACES = re.compile(r"(\{\{(?!\{)|\}\})")
NAMES = re.compile(r"<(char|bot|user)>", re.IGNORECASE)
DICE = re.compile(r"\s*([0-9]{0,3})d?([0-9]{1,7})\s*", re.IGNORECASE | re.ASCII)
PLAIN_COMMA = re.compile(r"(?<!\\),")
NOTHING = frozenset(("noop", "original"))  # there is no prompt of the platform's own to restore
UNSAID = ("comment", "hidden_key")


@dataclass(frozen=True)
class Names:
    char: str
    user: str


def expand(text: str, names: Names, seed: str, place: str) -> str:
    """Expand the macros of a text. ``place`` tells the texts of one card apart, so that each has its own chance."""
    if "{{" not in text and "<" not in text:
        return text
    return _Expansion(names, seed, place).of(text)


def count_of(text: str) -> int:
    """Return at most how many macros a text has."""
    return text.count("{{") + text.count("<")


def depth_of(text: str) -> int:
    """Return how deep the macros of a text are nested."""
    depth = deepest = 0
    for brace in BRACES.findall(text):
        depth = max(0, depth + (1 if brace == "{{" else -1))
        deepest = max(deepest, depth)
    return deepest


class _Expansion:
    def __init__(self, names: Names, seed: str, place: str) -> None:
        self._names = names
        self._seed = seed
        self._place = place
        self._count = 0
        self._known: dict[str, Callable[[str], str | None]] = {
            "random": self._random,
            "pick": self._pick,
            "roll": self._roll,
            "reverse": lambda text: text[::-1],
        }

    def of(self, text: str) -> str:
        frames: list[list[str]] = [[]]
        too_deep = 0
        for piece in BRACES.split(text):
            if piece == "{{" and len(frames) <= MAX_DEPTH:
                frames.append([])
            elif piece == "{{":
                too_deep += 1
                frames[-1].append(piece)
            elif piece == "}}" and too_deep:
                too_deep -= 1
                frames[-1].append(piece)
            elif piece == "}}" and len(frames) > 1:
                content = "".join(frames.pop())
                frames[-1].append(self._value(content))
            else:
                frames[-1].append(NAMES.sub(self._named, piece))
        while len(frames) > 1:  # a macro that is never closed is text
            content = "".join(frames.pop())
            frames[-1].append("{{" + content)
        return "".join(frames[0])

    def _named(self, found: re.Match[str]) -> str:
        return self._names.user if found[1].lower() == "user" else self._names.char

    def _value(self, macro: str) -> str:
        word = macro.strip().lower()
        if word == "char":
            return self._names.char
        if word == "user":
            return self._names.user
        if word == "newline":
            return "\n"
        if word in NOTHING or word.startswith("//"):
            return ""
        name, colon, rest = macro.partition(":")
        name = name.strip().lower()
        if colon and name in UNSAID:
            return ""
        known = self._known.get(name) if colon else None
        value = known(rest) if known is not None else None
        return "{{" + macro + "}}" if value is None else value

    def _random(self, rest: str) -> str | None:
        self._count += 1
        choices = _choices(rest)
        return choices[self._drawn(str(self._count)) % len(choices)]

    def _pick(self, rest: str) -> str | None:
        """The same choices have the same pick wherever they stand."""
        choices = _choices(rest)
        return choices[_drawn(f"{self._seed}\0pick\0{rest}") % len(choices)]

    def _roll(self, rest: str) -> str | None:
        found = DICE.fullmatch(rest.removeprefix(":"))
        if found is None:
            return None
        is_dice = "d" in rest.lower()
        count = int(found[1] or 1) if is_dice else 1
        sides = int(found[2] if is_dice else found[1] + found[2])
        if not (1 <= count <= MAX_DICE and 1 <= sides <= MAX_SIDES):
            return None
        self._count += 1
        return str(_rolled(self._drawn(str(self._count)), count, sides))

    def _drawn(self, which: str) -> int:
        return _drawn(f"{self._seed}\0{self._place}\0{which}")


def _drawn(what: str) -> int:
    """Return a number of 512 bits."""
    return int.from_bytes(hashlib.blake2b(what.encode("utf-8", "replace")).digest(), "big")


def _rolled(drawn: int, count: int, sides: int) -> int:
    total = count
    for _ in range(count):
        drawn, die = divmod(drawn, sides)
        total += die
    return total


def _choices(rest: str) -> list[str]:
    """Split at ``::`` where there are several, else at commas; ``\\,`` is a comma."""
    if rest.startswith(":"):
        parts = rest[1:].split("::")
        if len(parts) > 1:
            return [part.strip() for part in parts]
        rest = rest[1:]
    return [part.replace("\\,", ",").strip() for part in PLAIN_COMMA.split(rest)]
