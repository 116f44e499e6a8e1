"""Compiles the regular expressions of strangers so that none can take long.

Python's engine backtracks, so what an expression may cost is reckoned before it is ever used: ``work`` is how many steps it
can take from one place of a text. What could take more than MAX_WORK is refused. ``*``, ``+`` and ``{n,}`` reach MAX_REACH
repetitions at most, which is what makes the number finite. Backreferences and looking around are refused.

The expression is read here, and written again with its repetitions bounded; Python compiles what was written. So no step is
taken that was not counted: what is read otherwise than Python would read it is not what is compiled.

Compiling has a cost of its own: Python walks through every character that a set names, and through 65,536 places for a set
with one beyond Latin-1. ``making`` counts these; `[\u0100-\uffff]` forty times would take 0.6 s for one key.

Compiled keys are kept, and so are refusals, up to KEPT_BYTES for all books together: conversations with one character share its keys.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from guanaco.errors import InvalidInput

MAX_REACH = 50
MAX_WORK = 2_000  # `a.*b.*c` has 2,700; `dragon.*lair` 260
MAX_MAKING = 50_000  # 25 ms; all Chinese characters, `[\u4e00-\u9fa5]`, have 21,902
MAKING_OF_SET = 1_000
KEPT_BYTES = 16_000_000  # usual keys have 300 each
BYTES_BESIDES = 400  # of a kept key
SLASHED = re.compile(r"/(.*)/([a-z]*)", re.DOTALL)
FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
IGNORED_FLAGS = "gu"

NUMBERED = r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
ESCAPE = re.compile(
    rf"\\(?:({NUMBERED}|0[0-7]{{0,2}}|[0-3][0-7]{{2}})|N\{{[^}}]+\}}|[^0-9xuUN])", re.DOTALL
)
SET_MEMBER = re.compile(rf"\\(?:{NUMBERED}|[0-7]{{1,3}}|N\{{[^}}]+\}}|[^0-9xuUN])|[^\\]", re.DOTALL)
REPEAT = re.compile(r"([*+?]|\{(?!\})([0-9]*)(,?)([0-9]*)\})([?+]?)")
COMMENT = re.compile(r"\(\?#[^)]*\)")
FLAGS_FOR_ALL = re.compile(r"(?:\(\?[aimsu]+\))*")
GROUP = re.compile(r"\((?!\?)|\(\?(?:P<([^>]+)>|[aimsu]*(?:-[ims]+)?:)")
REFERS = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9]")
PLACES = {*"^$", r"\A", r"\Z", r"\b", r"\B"}
CLASSES = {r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"}


@dataclass(frozen=True)
class Pattern:
    """``work`` is at most how many steps it takes from each place of a text, ``making`` what compiling it took."""

    compiled: re.Pattern[str]
    work: int
    making: int


class KeptPatterns:
    """Keeps the outcomes for the keys that were used last. Any thread may ask; two that ask at once may both compile."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, bool], Pattern | InvalidInput] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: str, is_case_sensitive: bool) -> Pattern:
        """Compile a key, unless it is kept. InvalidInput in one sentence for what is refused."""
        name = (key, is_case_sensitive)
        with self._lock:
            if (known := self._kept.get(name)) is not None:
                self._kept.move_to_end(name)
        if known is None:
            known = _made(key, is_case_sensitive)
            self._keep(name, known)
        if isinstance(known, InvalidInput):
            raise InvalidInput(known.detail, hint=known.hint)
        return known

    def _keep(self, name: tuple[str, bool], made: Pattern | InvalidInput) -> None:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = made
                self.size_bytes += _size_bytes(name, made)
            while self.size_bytes > self._most_bytes:
                self.size_bytes -= _size_bytes(*self._kept.popitem(last=False))


_KEPT = KeptPatterns()


def compiled(key: str, is_case_sensitive: bool) -> Pattern:
    """Compile a key, which may be written as ``/…/i``, or take what is kept. InvalidInput in one sentence for what is refused."""
    return _KEPT.get(key, is_case_sensitive)


def _size_bytes(name: tuple[str, bool], made: Pattern | InvalidInput) -> int:
    code = sys.getsizeof(made.compiled) if isinstance(made, Pattern) else 0
    return BYTES_BESIDES + sys.getsizeof(name[0]) + code


def _made(key: str, is_case_sensitive: bool) -> Pattern | InvalidInput:
    try:
        return _compiled(key, is_case_sensitive)
    except InvalidInput as refusal:
        return InvalidInput(
            refusal.detail, hint=refusal.hint
        )  # without the frames of its traceback


def _compiled(key: str, is_case_sensitive: bool) -> Pattern:
    slashed = SLASHED.fullmatch(key)
    expression, letters = (slashed[1], slashed[2]) if slashed else (key, "")
    flags = 0 if is_case_sensitive or slashed else int(re.IGNORECASE)
    for letter in letters:
        if letter not in FLAGS and letter not in IGNORED_FLAGS:
            raise _refused(key, f"there is no flag {letter!r}")
        flags |= int(FLAGS.get(letter, 0))
    try:
        bounded, cost = _Reader(expression).read()
        if cost.work > MAX_WORK:
            raise _refused(key, "it could take too long: it repeats or chooses too often")
        if cost.making > MAX_MAKING:
            raise _refused(key, "its sets name too many characters")
        return Pattern(re.compile(bounded, flags), max(1, cost.work), cost.making)
    except (re.error, ValueError, OverflowError, RecursionError, Warning, _Malformed) as error:
        raise _refused(key, f"it is not a regular expression ({error})") from None
    except _Unsupported as error:
        raise _refused(key, str(error)) from None


class _Unsupported(Exception):
    pass


class _Malformed(Exception):
    pass


class _Cost(NamedTuple):
    """``paths`` is in how many ways a part can match from one place, ``work`` the steps of trying them all.

    ``making`` is the number of characters that its sets name.
    """

    work: int
    paths: int
    making: int = 0


ONE_STEP = _Cost(1, 1)


class _Piece(NamedTuple):
    """A part of an expression as it is compiled. ``members`` are the characters or classes of which it matches one."""

    text: str
    cost: _Cost
    members: tuple[str, ...] = ()
    is_place: bool = False
    is_repeat: bool = False
    is_group: bool = False


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._names: set[str] = set()

    def read(self) -> tuple[str, _Cost]:
        flags = self._take(FLAGS_FOR_ALL)
        text, cost = self._choices()
        if self._at < len(self._text):
            raise _Malformed("a parenthesis too many is closed")
        return (flags[0] if flags else "") + text, cost

    def _choices(self) -> tuple[str, _Cost]:
        choices = [self._sequence()]
        while self._takes("|"):
            choices.append(self._sequence())
        text = "|".join("".join(part.text for part in choice) for choice in choices)
        return text, _of_choices(choices)

    def _sequence(self) -> list[_Piece]:
        parts: list[_Piece] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in "|)":
                break
            if character in "*+?{" and (repeat := self._take(REPEAT)):
                if not parts or parts[-1].is_place or parts[-1].is_repeat:
                    raise _Malformed("there is nothing to repeat")
                parts[-1] = _repeated(parts[-1], repeat)
            elif character != "(" or not self._take(COMMENT):
                parts.append(self._part(character))
        return parts

    def _part(self, character: str) -> _Piece:
        if character == "(":
            return self._group()
        if character == "\\":
            return self._escape()
        self._at += 1
        if character == "[":
            return self._set()
        if character == ".":
            return _Piece(character, ONE_STEP)
        return _one(rf"\{character}" if character == "{" else character)

    def _group(self) -> _Piece:
        if not (opened := self._take(GROUP)):
            raise self._unread()
        text, cost = self._choices()
        if not self._takes(")"):
            raise _Malformed("a parenthesis is not closed")
        if (name := opened[1]) is not None:
            if name in self._names or not name.isidentifier():
                raise _Malformed(f"the group's name {name} is no name, or is there twice")
            self._names.add(name)
        # Nobody reads what a group has matched, and keeping it takes time at each repetition.
        begin = opened[0] if opened[0].endswith(":") else "(?:"
        return _Piece(f"{begin}{text})", cost, is_group=True)

    def _escape(self) -> _Piece:
        if not (escape := self._take(ESCAPE)):
            raise self._unread()
        if numbered := escape[1]:
            number = int(numbered[1:], 16) if numbered[0] in "xuU" else int(numbered, 8)
            return _one(re.escape(chr(number)))
        return _one(escape[0])

    def _set(self) -> _Piece:
        begin, is_negated = self._at - 1, self._takes("^")
        named: dict[str, int] = {}
        while not (named and self._takes("]")):
            first = last = self._member()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._member()
            range_of = max(1, _code(last) - _code(first) + 1)
            named[first if first is last else f"{first}-{last}"] = range_of
        text, members = self._text[begin : self._at], tuple(named)
        is_character = len(members) == 1 and members[0] not in CLASSES and named[members[0]] == 1
        making = 0 if is_character else MAKING_OF_SET + sum(named.values())
        if is_negated:
            steps = 1 if is_character else 1 + len(members)
            return _Piece(text, _Cost(steps, 1, making))
        return _Piece(text, _Cost(len(members), 1, making), members)

    def _member(self) -> str:
        if not (member := self._take(SET_MEMBER)):
            raise _Malformed("a set does not end")
        return member[0]

    def _unread(self) -> Exception:
        if REFERS.match(self._text, self._at):
            return _Unsupported("it refers back or looks around, which is not possible here")
        return _Malformed(f"it has the unknown sign {self._text[self._at : self._at + 3]}")

    def _take(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        if found := expected.match(self._text, self._at):
            self._at = found.end()
        return found

    def _takes(self, expected: str) -> bool:
        is_there = self._text.startswith(expected, self._at)
        self._at += len(expected) * is_there
        return is_there


@lru_cache(maxsize=1024)
def _one(text: str) -> _Piece:
    """Return a character, a class, or a place between characters."""
    if text in PLACES:
        return _Piece(text, ONE_STEP, is_place=True)
    return _Piece(text, _Cost(1, 1, MAKING_OF_SET + 1) if text in CLASSES else ONE_STEP, (text,))


def _code(member: str) -> int:
    """Return the number of a set's character, or one near it."""
    if not member.startswith("\\"):
        return ord(member)
    if member[1] in "xuU":
        return int(member[2:], 16)
    if member[1] == "N":
        try:
            return ord(unicodedata.lookup(member[3:-1]))
        except (KeyError, TypeError):
            raise _Malformed(f"there is no character {member}") from None
    return int(member[1:], 8) if member[1].isdigit() else ord(member[1])


def _repeated(part: _Piece, repeat: re.Match[str]) -> _Piece:
    if repeat[5] == "+":
        raise _Unsupported("it repeats without giving back, which is not possible here")
    least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(repeat[1], (-1, None))
    if least < 0:
        least = int(repeat[2] or 0)
        most = (int(repeat[4]) if repeat[4] else None) if repeat[3] else least
    if least > MAX_REACH or (most is not None and most > MAX_REACH):
        raise _Unsupported(f"it repeats more than {MAX_REACH} times")
    most = MAX_REACH if most is None else most
    if most < least:
        raise _Malformed("it repeats at most fewer times than at least")
    text = f"{part.text}{{{least},{most}}}{repeat[5]}"
    return _Piece(text, _of_repeat(least, most, part.cost), is_repeat=True)


def _of_all(parts: Iterable[_Piece]) -> _Cost:
    """Return what follows a part is tried after each of its paths."""
    work, paths, making = 0, 1, 0
    for part in parts:
        cost = part.cost
        work, paths = _bounded(work + paths * cost.work), _bounded(paths * cost.paths)
        making += cost.making
    return _Cost(work, paths, making)


def _of_choices(choices: Sequence[Sequence[_Piece]]) -> _Cost:
    """Reckon as Python does it: what all choices begin with is tried once, and single characters are one set."""
    if len(choices) == 1:
        return _of_all(choices[0])
    shared = 0
    while len({choice[shared] if shared < len(choice) else None for choice in choices}) == 1:
        first = choices[0][shared : shared + 1]
        if not first or first[0].is_group or first[0].is_repeat:
            break
        shared += 1
    begin, rests = choices[0][:shared], [choice[shared:] for choice in choices]
    costs = [_of_all(rest) for rest in rests]
    making = sum(one.making for one in costs)
    if all(len(rest) == 1 and rest[0].members for rest in rests):
        members = {member for rest in rests for member in rest[0].members}
        making = MAKING_OF_SET + sum(max(1, one.making - MAKING_OF_SET) for one in costs)
        one_set = _Cost(len(members), 1, making)
        return _of_all([*begin, _Piece("", one_set)])
    work = _bounded(1 + sum(one.work for one in costs))
    paths = _bounded(sum(one.paths for one in costs))
    return _of_all([*begin, _Piece("", _Cost(work, paths, making))])


def _of_repeat(least: int, most: int, inner: _Cost) -> _Cost:
    ways = list(_powers(inner.paths, most))
    work = 1 + max(1, inner.work) * sum(ways[:most])
    return _Cost(_bounded(work), _bounded(sum(ways[least:])), inner.making)


def _powers(paths: int, most: int) -> Iterator[int]:
    power = 1
    for _ in range(most + 1):
        yield power
        power = _bounded(power * paths)


def _bounded(number: int) -> int:
    return min(number, MAX_WORK + 1)


def _refused(key: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"The lorebook's key {key[:60]!r} cannot be used: {why}.",
        hint="Use plain words as keys, or a simpler expression.",
    )
