"""From a layout (texts around the turns, and the turns) to the prompt that fits into a token budget.

A layout's parts go by their priority, the highest first and 0 never; the turns go in blocks (truncation.py), and
the newest user message never. The finished prompt is within the budget by an exact count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from guanaco.chat import Sender, Turn
from guanaco.errors import MessageTooLong
from guanaco.prompt_files import Role
from guanaco_server.prompts.counting import EMPTY, Piece, Step, TokenCounter
from guanaco_server.prompts.truncation import Cut, Frame, History, find_cut


@dataclass(frozen=True)
class Part:
    """A text whose ``priority`` says how early it goes; 0 is never. Its ``role`` matters to chat templates alone."""

    text: str
    priority: int = 0
    role: Role = "system"


@dataclass(frozen=True, eq=False)  # one for each bot and user: counts are kept by its identity
class Layout:
    """What stands before and after the turns; a turn's text is made from it alone."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    turn_priority: int
    turn_text: Callable[[Turn], str]

    @cached_property
    def droppable(self) -> tuple[Part, ...]:
        """In the order in which they go."""
        parts = [part for part in (*self.before, *self.after) if part.priority > 0 and part.text]
        return tuple(sorted(parts, key=lambda part: -part.priority))

    @cached_property
    def eager(self) -> int:
        """How many of them go before any turn."""
        return sum(part.priority > self.turn_priority for part in self.droppable)

    def kept(self, dropped: int) -> tuple[list[Part], list[Part]]:
        """What is before and after the turns with the first of the droppable parts gone."""
        return self._kept[dropped]

    @cached_property
    def _kept(self) -> list[tuple[list[Part], list[Part]]]:
        def without(gone: Sequence[Part], parts: Sequence[Part]) -> list[Part]:
            return [part for part in parts if not any(part is other for other in gone)]

        gone = [self.droppable[:count] for count in range(len(self.droppable) + 1)]
        return [(without(g, self.before), without(g, self.after)) for g in gone]


def render(layout: Layout, turns: Sequence[Turn], counter: TokenCounter, budget: int) -> str:
    """The prompt, of at most ``budget`` tokens; MessageTooLong if what is never cut is longer."""
    return _Fitting(layout, turns, counter, budget).prompt()


class _Fitting:
    def __init__(
        self, layout: Layout, turns: Sequence[Turn], counter: TokenCounter, budget: int
    ) -> None:
        self._layout = layout
        self._turns = turns
        self._counter = counter
        self._budget = budget
        self._origin = len(turns)  # the oldest turn that was counted
        self._pieces: list[Piece] = []
        self._steps: list[Step] = []
        self._history = history_of(turns, self._tokens)

    def prompt(self) -> str:
        frame = self._counter.kept_for(self._layout, self._frame)
        cut = find_cut(self._history, frame, self._counter.sure(self._budget))
        tokens, prompt = self._measured(cut)
        if tokens <= self._budget:
            return prompt
        return self._shortened(cut, frame)

    def _frame(self) -> Frame:
        layout, counter = self._layout, self._counter
        sizes = []
        for dropped in range(len(layout.droppable) + 1):
            before, after = layout.kept(dropped)
            pieces = [_joined(counter, before), _joined(counter, after)]
            sizes.append(counter.sequence(pieces).tokens)
        return Frame(sizes, layout.eager, are_turns_kept=layout.turn_priority == 0)

    def _measured(self, cut: Cut) -> tuple[int, str]:
        """The prompt with its length: exact wherever that could matter."""
        before, after = self._layout.kept(cut.dropped)
        first = cut.first - self._origin
        head = [_joined(self._counter, before)]
        turns = self._pieces[first:]
        tail = [_joined(self._counter, after)]
        prompt = "".join([piece.text for piece in (*head, *turns, *tail)])
        total = self._sum(head, turns, tail, self._steps[first + 1 :])
        if total.is_exact or self._counter.is_far_from(self._budget, total.tokens):
            return total.tokens, prompt
        return self._counter.whole(prompt), prompt

    def _sum(
        self, head: list[Piece], turns: list[Piece], tail: list[Piece], steps: list[Step]
    ) -> Step:
        """As the counter would sum them up, with the turns' steps that are known already."""
        sequence = self._counter.sequence
        if not (turns and turns[0].text and turns[-1].text):
            return sequence(head + turns + tail)
        begin, end = sequence([*head, turns[0]]), sequence([turns[-1], *tail])
        tokens = begin.tokens + end.tokens - sequence(turns[-1:]).tokens
        is_exact = begin.is_exact and end.is_exact and all([step[1] for step in steps])
        return Step(tokens + sum([step[0] for step in steps]), is_exact)

    def _shortened(self, cut: Cut, frame: Frame) -> str:
        """What the sums took for short enough was not, or nothing that may be cut is left."""
        for shorter in shorter_cuts(cut, frame, self._history):
            tokens, prompt = self._measured(shorter)
            if tokens <= self._budget:
                return prompt
        raise too_long(tokens, self._budget)

    def _tokens(self, begin: int) -> list[int]:
        """Of the turns from ``begin`` on."""
        if begin < self._origin:
            texts = map(self._layout.turn_text, self._turns[max(0, begin - 1) : self._origin])
            pieces, steps = self._counter.follow(EMPTY, texts)
            if begin:
                del pieces[0], steps[0]  # which only stood before the others
            if self._pieces:
                self._steps[0] = self._counter.step(pieces[-1], self._pieces[0])
            self._pieces[:0], self._steps[:0] = pieces, steps
            self._origin = begin
        return [step[0] for step in self._steps[begin - self._origin :]]


def _joined(counter: TokenCounter, parts: Sequence[Part]) -> Piece:
    """Parts that always stand together are counted together, so that no junction between them is in doubt."""
    return counter.piece("".join([part.text for part in parts]))


def shorter_cuts(cut: Cut, frame: Frame, history: History) -> list[Cut]:
    """Halving what is left above the newest message, then without what goes last; the shortest comes last."""
    newest = cut.first if frame.are_turns_kept else history.newest_user()
    cuts = []
    first = cut.first
    while first < newest:
        first = (first + newest + 1) // 2
        cuts.append(Cut(first, cut.dropped))
    most = len(frame.sizes) - 1
    cuts += (Cut(first, dropped) for dropped in range(cut.dropped + 1, most + 1))
    return cuts or [cut]


def history_of(turns: Sequence[Turn], tokens: Callable[[int], Sequence[int]]) -> History:
    return History(
        chars=[len(turn.content) for turn in turns],
        is_user=[turn.sender is Sender.USER for turn in turns],
        tokens=tokens,
    )


def too_long(tokens: int, budget: int) -> MessageTooLong:
    return MessageTooLong(
        f"The bot's persona and the newest message take {tokens:,} tokens; this model is given {budget:,}.",
        hint="Shorten the message or the persona.",
    )
