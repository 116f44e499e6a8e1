"""A model's own chat template: which shape of conversation it takes, and prompts made by it, cut to a budget.

    own system message, any order   →  own system message, a user first   →  the system's text in the first user message

The first shape in which the template shows everything that was said is the template's. Which turns are kept is decided by
sums as for the other prompts, with each message's own tokens and what the template was seen to put around one;
the template is then rendered once, and its text counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from guanaco.chat import Sender
from guanaco.errors import BadChatTemplate, PromptFailed
from guanaco_server.prompts.counting import TokenCounter
from guanaco_server.prompts.history.truncation import Cut, Frame, Replay
from guanaco_server.prompts.layouts import ChatTurn, Layout, Part
from guanaco_server.prompts.rendering import history_of, shorter_cuts, too_long
from guanaco_server.prompts.templates.files import TemplateFile
from guanaco_server.prompts.templates.process import (
    Job,
    TemplateFault,
    TemplateOverrun,
    TemplateProcess,
)
from guanaco_server.serializer.templates.chat_template import variables

WHAT = "The model's chat template"
Message = dict[str, str]
RoleText = tuple[str, str]  # role and text


@dataclass(frozen=True)
class Shape:
    """Describes which conversations a template accepts."""

    has_system: bool
    begins_with_user: bool

    def messages(self, pieces: Sequence[RoleText]) -> list[Message]:
        """Join neighbours of one role into one message."""
        system = [text for role, text in pieces if role == "system" and text]
        turns = [(role, text) for role, text in pieces if role != "system" and text]
        if self.begins_with_user:
            while turns and turns[0][0] == "assistant":
                system.append(turns.pop(0)[1])
        if system and self.has_system:
            turns.insert(0, ("system", "\n".join(system)))
        elif system:
            turns.insert(0, ("user", "\n".join(system)))
        grouped = groupby(turns, key=lambda turn: turn[0])
        return [{"role": r, "content": "\n".join(text for _, text in same)} for r, same in grouped]


SHAPES = (Shape(True, False), Shape(True, True), Shape(False, True))
CHECKED_TURNS = 25  # of either side
PROBE: tuple[RoleText, ...] = (
    ("system", "Persona."),
    ("assistant", "Greeting."),
    ("user", "Question."),
    ("assistant", "Answer."),
    ("user", "Another."),
)


class ChatTemplate:
    """One artifact's template. BadChatTemplate when there is no shape in which it shows a conversation. Blocks."""

    def __init__(self, file: TemplateFile, process: TemplateProcess) -> None:
        self._file = file
        self._process = process
        self.shape = self._find_shape()

    def require_fast(self) -> None:
        """Raise BadChatTemplate if a conversation of 51 messages takes more than the thread's allowance."""
        pieces = [*PROBE[:1], *PROBE[2:4] * CHECKED_TURNS, PROBE[4]]
        try:
            self._render(self.shape.messages(pieces))
        except TemplateOverrun as fault:
            raise _unusable(str(fault)) from None
        except TemplateFault:
            return  # it may refuse a conversation of this length

    def text(self, pieces: Sequence[RoleText]) -> str:
        """Return the prompt up to where the model goes on; PromptFailed when the template refuses the conversation."""
        try:
            return self._render(self.shape.messages(pieces))
        except TemplateFault as fault:
            raise PromptFailed(WHAT, str(fault)) from None

    def text_begun(self, pieces: Sequence[RoleText], begun: str) -> str:
        """Return the same with the reply so far: where the template writes a reply, up to that reply's end.

        Where it writes replies otherwise than it asks for one (it leaves thoughts out, or cuts), behind what asks.
        """
        asked = self.text(pieces)
        messages = self.shape.messages(pieces)
        if messages and messages[-1]["role"] == "assistant":
            return asked + begun
        try:
            whole = self._render(
                [*messages, {"role": "assistant", "content": begun}], asks_for_reply=False
            )
        except TemplateFault:
            return asked + begun
        until = whole.rfind(begun)
        is_same = until >= 0 and whole.startswith(asked) and not whole[len(asked) : until].strip()
        return whole[: until + len(begun)] if is_same else asked + begun

    def _find_shape(self) -> Shape:
        why = "it leaves out what was said"
        for shape in SHAPES:
            try:
                text = self._render(shape.messages(PROBE))
            except TemplateOverrun as fault:
                why = str(fault)
                break
            except TemplateFault as fault:
                why = str(fault)
            else:
                if all(content in text for _, content in PROBE):
                    return shape
        raise _unusable(why)

    def _render(self, messages: list[Message], *, asks_for_reply: bool = True) -> str:
        given = variables(self._file.tokens, messages, asks_for_reply=asks_for_reply)
        return self._process.render([Job(self._file.template, given)])[0]


def _unusable(why: str) -> BadChatTemplate:
    return BadChatTemplate(
        f"{WHAT} cannot be rendered: {why}.",
        hint="Submit with another --formatter, or put the template right.",
    )


class ChatTemplateCounter:
    """A chat template with the tokens that it puts around messages."""

    def __init__(self, template: ChatTemplate, counter: TokenCounter) -> None:
        self._template = template
        self._counter = counter
        word = counter.alone(PROBE[2][1])
        short = self._count(PROBE[2:3])
        pair = self._count(PROBE[2:]) - short - sum(counter.alone(text) for _, text in PROBE[3:])
        self._around_turn = max(0, -(-pair // 2))
        self._around_all = max(0, short - word)
        system = self._count([PROBE[0], PROBE[2]]) - short - counter.alone(PROBE[0][1])
        self._around_part = max(1, system)

    def render(
        self, layout: Layout, turns: Sequence[ChatTurn], budget: int, begun: str = ""
    ) -> str:
        """Return the prompt, of at most ``budget`` tokens; MessageTooLong if what is never cut is longer.

        It ends with ``begun``, the reply so far.
        """
        texts: dict[int, str] = {}

        def text(index: int) -> str:
            if index not in texts:
                texts[index] = layout.turn_text(turns[index])
            return texts[index]

        def tokens(begin: int) -> list[int]:
            return [
                self._around_turn + self._counter.count_inside(text(index))
                for index in range(begin, len(turns))
            ]

        history = history_of(turns, tokens)
        framed = layout.with_begun(begun) if begun else layout
        frame = self._counter.kept_for(framed, lambda: self._frame(framed))
        cut = Replay(history, frame, self._counter.safe_budget(budget)).cut
        for shorter in (cut, *shorter_cuts(cut, frame, history)):
            pieces = list(_message_pieces(layout, shorter, turns, text))
            text_made = (
                self._template.text_begun(pieces, begun) if begun else self._template.text(pieces)
            )
            prompt = self._without_double_begin(text_made)
            length = self._counter.count(prompt)
            if length <= budget:
                return prompt
        raise too_long(length, budget)

    def text(self, pieces: Sequence[RoleText], begun: str = "") -> str:
        """Return the template's text of these messages, which ends with ``begun``; nothing is cut."""
        made = self._template.text_begun(pieces, begun) if begun else self._template.text(pieces)
        return self._without_double_begin(made)

    def _frame(self, layout: Layout) -> Frame:
        sizes = []
        for dropped in range(len(layout.droppable) + 1):
            parts = [part for side in layout.kept(dropped) for part in side if part.text]
            inside = sum(self._counter.count_inside(part.text) for part in parts)
            sizes.append(self._around_all + inside + self._around_part * len(parts))
        return Frame(sizes, layout.eager, are_turns_kept=layout.turn_priority == 0)

    def _count(self, pieces: Sequence[RoleText]) -> int:
        return self._counter.count(self._without_double_begin(self._template.text(pieces)))

    def _without_double_begin(self, text: str) -> str:
        """The model server puts the tokenizer's own beginning before every prompt; most templates write it too."""
        begin = self._counter.begin
        return text.removeprefix(begin) if begin else text


def _message_pieces(
    layout: Layout, cut: Cut, turns: Sequence[ChatTurn], text: Any
) -> Iterator[RoleText]:
    before, after = layout.kept(cut.dropped)
    yield from _part_pieces(before)
    for index in range(cut.first, len(turns)):
        yield "assistant" if turns[index].sender is Sender.BOT else "user", text(index)
    yield from _part_pieces(after)


def _part_pieces(parts: Sequence[Part]) -> Iterator[RoleText]:
    yield from ((part.role, part.text) for part in parts)
