"""Renders a layout (texts around the turns, and the turns) to a prompt that fits into a token budget.

A layout's parts go by their priority, the highest first and 0 never; the turns go in blocks (truncation.py), and
the newest user message never. The finished prompt is within the budget by an exact count. Here it is made of all the
turns; transcript.py goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guanaco.chat import Sender
from guanaco.errors import MessageTooLong
from guanaco_server.prompts.counting import EMPTY, AddedTokens, CountedText, TokenCounter
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.history.truncation import RESERVE, Cut, Frame, Replay, TurnSizes
from guanaco_server.prompts.layouts import ChatTurn, Layout, counted_layout


def render(
    layout: Layout,
    turns: Sequence[ChatTurn],
    counter: TokenCounter,
    budget: int,
    transcript: Transcript | None = None,
) -> str:
    """Return the prompt, of at most ``budget`` tokens; MessageTooLong if what is never cut is longer.

    ``transcript`` will know of it how to go on.
    """
    return _Fitting(layout, turns, counter, budget).prompt(transcript)


def render_uncounted(
    layout: Layout, turns: Sequence[ChatTurn], counter: TokenCounter, budget: int
) -> str | None:
    """Return the prompt with everything in it, where its bytes alone show that it is within the budget; else None."""
    bound = counter.bound
    if bound is None:
        return None
    room = counter.safe_budget(budget) - RESERVE - bound.around
    if sum([len(turn.content) for turn in turns]) > room:
        return None
    before, after = layout.kept(0)
    texts = [part.text for part in before]
    texts += map(layout.turn_text, turns)
    texts += (part.text for part in after)
    return "".join(texts) if sum(map(bound.tokens, texts)) <= room else None


class _Fitting:
    def __init__(
        self, layout: Layout, turns: Sequence[ChatTurn], counter: TokenCounter, budget: int
    ) -> None:
        self._layout = layout
        self._around = counted_layout(layout, counter)
        self._turns = turns
        self._counter = counter
        self._budget = budget
        self._origin = len(turns)  # the oldest turn that was counted
        self._pieces: list[CountedText] = []
        self._steps: list[AddedTokens] = []
        self._history = history_of(turns, self._tokens)

    def prompt(self, transcript: Transcript | None) -> str:
        frame = self._around.frame
        replay = Replay(self._history, frame, self._counter.safe_budget(self._budget))
        cut = replay.cut
        if transcript is not None and self._turns:
            self._keep(transcript, replay)
        tokens, prompt = self._measured(cut)
        if tokens <= self._budget:
            return prompt
        return self._shortened(cut, frame)

    def _keep(self, transcript: Transcript, replay: Replay) -> None:
        first = replay.cut.first - self._origin
        transcript.begin(
            self._layout,
            self._counter,
            self._budget,
            replay,
            self._turns[-1],
            self._pieces[first:],
            self._steps[first:],
        )

    def _measured(self, cut: Cut) -> tuple[int, str]:
        """Return the prompt with its length: exact wherever that could matter."""
        head, tail = self._around.sides[cut.dropped]
        first = cut.first - self._origin
        turns = self._pieces[first:]
        prompt = "".join([piece.text for piece in (head, *turns, tail)])
        total = self._sum(head, turns, tail, self._steps[first + 1 :])
        if total.is_exact or self._counter.is_safely_within(self._budget, total.tokens):
            return total.tokens, prompt
        return self._counter.whole(prompt), prompt

    def _sum(
        self,
        head: CountedText,
        turns: list[CountedText],
        tail: CountedText,
        steps: list[AddedTokens],
    ) -> AddedTokens:
        """Sum up as the counter would, with the turns' steps that are known already."""
        if not (turns and turns[0].text and turns[-1].text):
            return self._counter.sequence([head, *turns, tail])
        begin, end = self._counter.sequence([head, turns[0]]), self._counter.step(turns[-1], tail)
        is_exact = begin.is_exact and end.is_exact and all([step[1] for step in steps])
        return AddedTokens(begin.tokens + sum([step[0] for step in steps]) + end.tokens, is_exact)

    def _shortened(self, cut: Cut, frame: Frame) -> str:
        """Shorten a prompt that is over the budget although the sums were within it, or say that nothing is left to cut."""
        for shorter in shorter_cuts(cut, frame, self._history):
            tokens, prompt = self._measured(shorter)
            if tokens <= self._budget:
                return prompt
        raise too_long(tokens, self._budget)

    def _tokens(self, begin: int) -> list[int]:
        """Count the turns from ``begin`` on."""
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


def shorter_cuts(cut: Cut, frame: Frame, history: TurnSizes) -> list[Cut]:
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


def history_of(turns: Sequence[ChatTurn], tokens: Callable[[int], Sequence[int]]) -> TurnSizes:
    return TurnSizes(
        chars=[len(turn.content) for turn in turns],
        is_user=[turn.sender is Sender.USER for turn in turns],
        tokens=tokens,
    )


def too_long(tokens: int, budget: int) -> MessageTooLong:
    return MessageTooLong(
        f"The bot's persona and the newest message take {tokens:,} tokens; this model is given {budget:,}.",
        hint="Shorten the message or the persona.",
        tokens=tokens,
    )
