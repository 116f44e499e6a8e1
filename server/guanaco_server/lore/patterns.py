"""Compiles the regular expressions of strangers so that none can take long.

Python's engine backtracks, so what an expression may cost is reckoned before it is ever used: ``work`` is how many steps it
can take from one place of a text. What could take more than MAX_WORK is refused. ``*``, ``+`` and ``{n,}`` reach MAX_REACH
repetitions at most, which is what makes the number finite. Backreferences and looking around are refused.

Compiling has a cost of its own: Python walks through every character that a set names, and through 65,536 places for a set
with one beyond Latin-1. ``making`` counts these; `[\u0100-\uffff]` forty times would take 0.6 s for one key.

Compiled keys are kept, and so are refusals, up to KEPT_BYTES for all books together: conversations with one character share its keys.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

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
ONE_CHARACTER = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY)
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


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
        tree = _parser.parse(expression, flags)
        cost = _of_all(_capped(tree))
        if cost.work > MAX_WORK:
            raise _refused(key, "it could take too long: it repeats or chooses too often")
        if (making := _making(tree)) > MAX_MAKING:
            raise _refused(key, "its sets name too many characters")
        return Pattern(_compiler.compile(tree), max(1, cost.work), making)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise _refused(key, f"it is not a regular expression ({error})") from None
    except _Unsupported as error:
        raise _refused(key, str(error)) from None


@dataclass(frozen=True)
class _Cost:
    """``paths`` is in how many ways a part can match from one place, ``work`` the steps of trying them all."""

    work: int
    paths: int


class _Unsupported(Exception):
    pass


def _capped(tree: Any) -> Any:
    """The tree, in which no repetition is without an end. It is changed in place."""
    for place, (kind, about) in enumerate(tree):
        if kind in REPEATS:
            least, most, inner = about
            if least > MAX_REACH or (most is not _constants.MAXREPEAT and most > MAX_REACH):
                raise _Unsupported(f"it repeats more than {MAX_REACH} times")
            tree[place] = (kind, (least, min(int(most), MAX_REACH), _capped(inner)))
        elif kind is _constants.SUBPATTERN:
            _capped(about[-1])
        elif kind is _constants.BRANCH:
            for branch in about[1]:
                _capped(branch)
    return tree


def _making(tree: Any) -> int:
    """Count the characters that the sets of a tree name."""
    total = 0
    for kind, about in tree:
        if kind is _constants.IN:
            total += MAKING_OF_SET + sum(map(_named, about))
        elif kind in REPEATS or kind is _constants.SUBPATTERN:
            total += _making(about[-1])
        elif kind is _constants.BRANCH:
            total += sum(map(_making, about[1]))
    return total


def _named(member: tuple[Any, Any]) -> int:
    kind, about = member
    return int(about[1] - about[0] + 1) if kind is _constants.RANGE else 1


def _of_all(parts: Iterable[tuple[Any, Any]]) -> _Cost:
    """Return what follows a part is tried after each of its paths."""
    work, paths = 0, 1
    for part in parts:
        cost = _of(*part)
        work, paths = _bounded(work + paths * cost.work), _bounded(paths * cost.paths)
    return _Cost(work, paths)


def _of(kind: Any, about: Any) -> _Cost:
    if kind is _constants.IN:
        return _Cost(max(1, len(about)), 1)  # its members are compared one after another
    if kind in ONE_CHARACTER or kind is _constants.AT:
        return _Cost(1, 1)
    if kind is _constants.SUBPATTERN:
        return _of_all(about[-1])
    if kind is _constants.BRANCH:
        costs = [_of_all(branch) for branch in about[1]]
        return _Cost(1 + sum(one.work for one in costs), sum(one.paths for one in costs))
    if kind in REPEATS:
        least, most, inner = about
        return _of_repeat(least, most, _of_all(inner))
    raise _Unsupported("it refers back or looks around, which is not possible here")


def _of_repeat(least: int, most: int, inner: _Cost) -> _Cost:
    ways = list(_powers(inner.paths, most))
    work = 1 + max(1, inner.work) * sum(ways[:most])
    return _Cost(_bounded(work), _bounded(sum(ways[least:])))


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
