"""Decides which turns a prompt keeps. It cuts in blocks, so that the beginning stays the same for many turns.

    |persona|scenario|  turns …                          |reply:|
             dropped    ^ the cut stays put while the prompt grows, and when the budget is passed
             last         it goes on until LOW_WATER of the room for turns is taken

The cut depends on the history alone: the turns are replayed, so every gateway process finds the same, and it never
moves back. Its decisions rest on sums of the turns' own counts, which only grow, with RESERVE tokens to spare
for the places where pieces meet; whether the finished prompt keeps to the budget is for the caller to see.

A history of any length costs the same: once in EPOCH_CHARS characters for each token of the budget, the cut is
set as if the prompt were full, by what is newest alone, and replaying begins at the last such turn. That moves no
cut back either: an earlier one left LOW_WATER of the room to older turns, and this one leaves as much to newer ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

LOW_WATER = 0.65
RESERVE = 4  # tokens; where two pieces meet, one more or fewer is common
EPOCH_CHARS = 16  # for each token of the budget: some four prompts


@dataclass(frozen=True, slots=True)
class Cut:
    """``first`` is the oldest turn kept; of the parts that may go, the first ``dropped`` are gone."""

    first: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The sizes of the text around the turns: ``sizes[n]`` are its tokens without the first n of its droppable parts.

    ``eager`` of these go before any turn does.
    """

    sizes: Sequence[int]
    eager: int
    are_turns_kept: bool = False  # the turns are never cut


@dataclass(frozen=True)
class TurnSizes:
    """Turns by their characters, which of them are a user's, and what each one adds in tokens; all oldest first.

    ``tokens(begin)`` is of those from ``begin`` on, and is asked for no more than is needed.
    """

    chars: Sequence[int]
    is_user: Sequence[bool]
    tokens: Callable[[int], Sequence[int]]

    def newest_user(self, moment: int | None = None) -> int:
        """Return the index of the newest user message up to ``moment``; the number of turns if there is none."""
        last = len(self.is_user) - 1 if moment is None else moment
        for index in range(last, -1, -1):
            if self.is_user[index]:
                return index
        return len(self.is_user)


class Replay:
    """The cut of a conversation's newest prompt, and of those to come.

    It may still be too long: persona and newest message are never cut.
    """

    __slots__ = ("_budget", "_chars", "_epoch", "_frame", "_origin", "_sums", "cut")

    def __init__(self, history: TurnSizes, frame: Frame, budget: int) -> None:
        self._frame = frame
        self._budget = budget
        self._origin = 0
        self._sums = array("i", [0])  # tokens of the turns from the origin on: one more than turns
        self._chars = sum(history.chars)
        self._epoch = self._epoch_at(self._chars)
        moments = _moments(history)
        if moments:
            self._replay(history, moments)
        else:
            self.cut = self._fit(Cut(0, 0), -1, 0)

    def add(self, chars: int, is_user: bool, tokens: int) -> None:
        """One more turn. Only after a user message: any other last turn was a moment as the last one alone."""
        self._sums.append(self._sums[-1] + tokens)
        self._chars += chars
        if not is_user:
            return
        moment = self.turn_count - 1
        before, self._epoch = self._epoch, self._epoch_at(self._chars)
        if self._epoch > before:
            self.cut = self._begin_epoch(moment, moment)
        elif not self._fits(self.cut, moment):
            self.cut = self._advance(self.cut, moment, moment)
        else:
            return
        self.forget()

    @property
    def turn_count(self) -> int:
        return self._origin + len(self._sums) - 1

    def forget(self) -> None:
        """Forget the turns before the cut, which never moves back."""
        del self._sums[: self.cut.first - self._origin]
        self._origin = self.cut.first

    def tokens_after_first(self) -> int:
        """Return the tokens of the turns that are kept, without the first one."""
        return self._sums[-1] - self._sums[self.cut.first + 1 - self._origin]

    def _replay(self, history: TurnSizes, moments: list[int]) -> None:
        begin = self._last_epoch(history, moments)
        if begin is None:
            self._sum_from(history, 0)
            cut, after = Cut(0, 0), 0
        else:
            moment = moments[begin]
            self._sum_from(history, self._first_turn_beyond_budget(history, moment))
            cut, after = self._begin_epoch(moment, history.newest_user(moment)), begin + 1
        while (after := self._next_overflow(cut, moments, after)) < len(moments):
            cut = self._advance(cut, moments[after], history.newest_user(moments[after]))
            after += 1
        self.cut = cut

    def _epoch_at(self, chars: int) -> int:
        return 0 if self._frame.are_turns_kept else chars // (EPOCH_CHARS * self._budget)

    def _last_epoch(self, history: TurnSizes, moments: list[int]) -> int | None:
        """Find the last of the moments before which a multiple of the epoch's length was passed."""
        if not self._epoch:
            return None
        total, end = self._chars, len(history.chars)
        epoch = self._epoch
        for place in range(len(moments) - 1, -1, -1):
            total -= sum(history.chars[moments[place] + 1 : end])
            end = moments[place] + 1
            if self._epoch_at(total) < epoch:
                return place + 1
        return 0

    def _first_turn_beyond_budget(self, history: TurnSizes, moment: int) -> int:
        """Return the turn from which on the room is surely full at that moment."""
        begin, newer = moment, len(history.chars) - moment - 1
        while begin:
            begin = max(0, moment - 2 * (moment - begin) - 4)
            tokens = history.tokens(begin)
            if sum(tokens[: len(tokens) - newer]) > self._budget:
                break
        return begin

    def _sum_from(self, history: TurnSizes, origin: int) -> None:
        self._origin = origin
        self._sums = array("i", accumulate(history.tokens(origin), initial=0))

    def _begin_epoch(self, moment: int, newest: int) -> Cut:
        eager = self._frame.eager
        return self._fit(Cut(self._low_water(eager, moment, newest), eager), moment, newest)

    def _next_overflow(self, cut: Cut, moments: list[int], after: int) -> int:
        limit = self._budget - RESERVE - self._frame.sizes[cut.dropped]
        turn = bisect_right(self._sums, limit + self._sums[cut.first - self._origin])
        return max(after, bisect_left(moments, turn - 1 + self._origin))

    def _advance(self, cut: Cut, moment: int, newest: int) -> Cut:
        dropped = cut.dropped
        while dropped < self._frame.eager and not self._fits(Cut(cut.first, dropped), moment):
            dropped += 1
        cut = Cut(cut.first, dropped)
        if not self._fits(cut, moment) and not self._frame.are_turns_kept:
            cut = Cut(max(cut.first, self._low_water(dropped, moment, newest)), dropped)
        return self._fit(cut, moment, newest)

    def _fit(self, cut: Cut, moment: int, newest: int) -> Cut:
        """Drop what is dropped last, if nothing else is left to cut."""
        while cut.dropped < len(self._frame.sizes) - 1 and not self._fits(cut, moment):
            if cut.first < newest and not self._frame.are_turns_kept:
                break
            cut = Cut(cut.first, cut.dropped + 1)
        return cut

    def _fits(self, cut: Cut, moment: int) -> bool:
        turns = self._sums[moment + 1 - self._origin] - self._sums[cut.first - self._origin]
        return self._frame.sizes[cut.dropped] + turns + RESERVE <= self._budget

    def _low_water(self, dropped: int, moment: int, newest: int) -> int:
        """Return the oldest turn from which on at most LOW_WATER of the room is taken; the newest user message at last."""
        room = self._budget - self._frame.sizes[dropped] - RESERVE
        least = self._sums[moment + 1 - self._origin] - int(LOW_WATER * max(0, room))
        return min(bisect_left(self._sums, least) + self._origin, newest)


def _moments(history: TurnSizes) -> list[int]:
    """Return the turns at which a prompt was made: every user message, and the last turn."""
    moments = [index for index, is_user in enumerate(history.is_user) if is_user]
    last = len(history.is_user) - 1
    if last >= 0 and (not moments or moments[-1] != last):
        moments.append(last)
    return moments
