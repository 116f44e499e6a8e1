"""Keeps the parts of a conversation's last prompt beside its turns, so that the next prompt costs only what is new.

    |head| text: the turns from the cut on … | new turns |tail|

Sums run on, and so does the replay of the cuts (truncation.py). The prompt is the very one that rendering from nothing
makes; tests/unit/test_transcript.py plays conversations by both. What is in doubt is left to that: another bot, formatter,
tokenizer or budget, turns that are not those that were taken, a prompt that must be counted whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Sender
from guanaco_server.prompts.counting import AddedTokens, CountedText, TokenCounter
from guanaco_server.prompts.history.truncation import Replay
from guanaco_server.prompts.layouts import ChatTurn, Layout, counted_layout


class Transcript:
    """One conversation, whose turns are only added, or taken away behind its last user message. Empty at first."""

    __slots__ = (
        "_around",
        "_begin",  # head and first turn, counted; None where that turn has no text
        "_budget",
        "_last",  # the piece that the next turn follows
        "_newest",  # the last turn taken; None when empty
        "_replay",
        "_text",
        "_unsure",  # the newest turn of which it is not sure how much it adds
        "layout",
    )

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self._begin: AddedTokens | None = None
        self._newest: ChatTurn | None = None

    def begin(
        self,
        layout: Layout,
        counter: TokenCounter,
        budget: int,
        replay: Replay,
        newest: ChatTurn,
        pieces: Sequence[CountedText],
        steps: Sequence[AddedTokens],
    ) -> None:
        """Begin with the turns from the cut on, as they were rendered. It stays empty where nothing can be gone on with."""
        self._newest = None
        if newest.sender is not Sender.USER:
            return
        replay.forget()
        self.layout, self._budget, self._replay = layout, budget, replay
        self._around = counted_layout(layout, counter)
        self._unsure = 0
        self._note_unsure(replay.cut.first, steps)
        self._set_text([piece.text for piece in pieces], counter)
        self._last = pieces[-1]
        self._newest = newest

    def next_prompt(
        self, layout: Layout, turns: Sequence[ChatTurn], counter: TokenCounter, budget: int
    ) -> str | None:
        """Return None if it must be rendered from nothing."""
        known = self._known(turns)
        if not known or turns[-1].sender is not Sender.USER:
            return None
        if budget != self._budget or counted_layout(layout, counter) is not self._around:
            return None
        cut = self._replay.cut
        new = turns[known:]
        pieces, steps = counter.follow(self._last, map(layout.turn_text, new))
        counter.step(pieces[-1] if pieces else self._last, self._around.sides[cut.dropped][1])
        self._newest = None  # all is counted; until all has gone well
        ahead = self._replay.turn_count - known
        texts = self._take(new, pieces, steps)
        if self._replay.cut is cut:
            self._text += "".join(texts)
        elif (first := self._replay.cut.first - ahead) >= 0:
            self._set_text([layout.turn_text(turn) for turn in turns[first:]], counter)
        else:
            return None
        prompt = self._prompt(counter)
        if prompt is not None:
            self._newest = turns[-1]
        return prompt

    def _known(self, turns: Sequence[ChatTurn]) -> int:
        """Return how many of the turns were taken already, found by the identity of the last one."""
        if self._newest is not None:
            for place in range(len(turns), 0, -1):
                if turns[place - 1] is self._newest:
                    return place
        return 0

    def _take(
        self, turns: Sequence[ChatTurn], pieces: Sequence[CountedText], steps: Sequence[AddedTokens]
    ) -> Sequence[str]:
        if not turns:
            return ()
        replay = self._replay
        self._note_unsure(replay.turn_count, steps)
        for turn, step in zip(turns, steps, strict=True):
            replay.add(len(turn.content), turn.sender is Sender.USER, step[0])
        self._last = pieces[-1]
        return [piece[0] for piece in pieces]

    def _note_unsure(self, first: int, steps: Sequence[AddedTokens]) -> None:
        for turn, step in enumerate(steps, first):
            if not step[1]:
                self._unsure = turn

    def _set_text(self, texts: Sequence[str], counter: TokenCounter) -> None:
        """Set the text of the turns from the cut on."""
        head, _ = self._around.sides[self._replay.cut.dropped]
        self._begin = counter.sequence([head, counter.piece(texts[0])]) if texts[0] else None
        self._text = "".join(texts)

    def _prompt(self, counter: TokenCounter) -> str | None:
        """Return None unless its length is known, and within the budget."""
        if self._begin is None or not self._last.text:
            return None
        cut = self._replay.cut
        head, tail = self._around.sides[cut.dropped]
        end = counter.step(self._last, tail)
        tokens = self._begin.tokens + self._replay.tokens_after_first() + end.tokens
        is_exact = self._begin.is_exact and end.is_exact and self._unsure <= cut.first
        if tokens > self._budget:
            return None
        if not is_exact and not counter.is_safely_within(self._budget, tokens):
            return None
        return f"{head.text}{self._text}{tail.text}"
