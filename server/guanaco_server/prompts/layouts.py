"""Layouts: the texts around the turns of a prompt, and which of them are dropped when the prompt is too long.

A formatter's five templates make this layout:

    memory_template   the bot's persona                 never cut
    prompt_template   scenario or example dialogue      dropped last
    turns             oldest first, in blocks           dropped first; the newest user message never
    response_template                                   never cut
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from guanaco.chat import Bot, Sender
from guanaco.prompts import PromptFormatter, PromptRole, fill, parse_template
from guanaco_server.lore.activation import constants, text_of
from guanaco_server.prompts.counting import CountedText, Generations, TokenCounter
from guanaco_server.prompts.history.truncation import Frame

REMINDER_LINE = "{memory}\n"
SUMMARY_BEGINS = "What happened before: "


@dataclass(frozen=True, slots=True)
class Part:
    """A text whose ``priority`` says how early it goes; 0 is never. Its ``role`` matters to chat templates alone."""

    text: str
    priority: int = 0
    role: PromptRole = "system"


@dataclass(frozen=True, eq=False)  # one for each bot and user: counts are kept by its identity
class Layout:
    """The text before and after the turns; a turn's text is made from the turn alone. ``made_of`` tells equal ones."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    turn_priority: int
    turn_text: Callable[[ChatTurn], str]
    made_of: tuple[object, ...] = ()

    @cached_property
    def droppable(self) -> tuple[Part, ...]:
        """In the order in which they go."""
        parts = [part for part in (*self.before, *self.after) if part.priority > 0 and part.text]
        return tuple(sorted(parts, key=lambda part: -part.priority))

    @cached_property
    def eager(self) -> int:
        """The number of parts that are dropped before any turn is."""
        return sum(part.priority > self.turn_priority for part in self.droppable)

    def with_begun(self, begun: str) -> Layout:
        """Return the same with the reply so far behind it, as the model would have gone on to write it; never cut."""
        begun_part = Part(self._before_begun(begun) + begun)
        return replace(self, after=(*self.after, begun_part), made_of=())

    def _before_begun(self, begun: str) -> str:
        """Return the whitespace between what asks for the reply and its text, as a turn's text has it."""
        head = self.turn_text(Utterance(Sender.BOT, begun)).partition(begun)[0]
        asked = "".join([part.text for part in self.after])
        overlap = next(size for size in range(len(head), -1, -1) if asked.endswith(head[:size]))
        left = head[overlap:]
        if not left.strip():
            return left
        return " " if asked and not asked[-1].isspace() else ""

    def kept(self, dropped: int) -> tuple[list[Part], list[Part]]:
        """Return the parts before and after the turns, without the first ``dropped`` droppable ones."""
        gone = self.droppable[:dropped]

        def without(parts: Sequence[Part]) -> list[Part]:
            return [part for part in parts if not any(part is other for other in gone)]

        return without(self.before), without(self.after)


@dataclass(frozen=True, eq=False, slots=True)
class CountedLayout:
    """A layout, counted: with the first n of its droppable parts gone, ``sides[n]`` stand before and after the turns."""

    sides: tuple[tuple[CountedText, CountedText], ...]
    frame: Frame


def counted_layout(layout: Layout, counter: TokenCounter) -> CountedLayout:
    """The very same object while layout and counter are."""
    return counter.kept_for(layout, lambda: _count(layout, counter))


def _count(layout: Layout, counter: TokenCounter) -> CountedLayout:
    kept = [layout.kept(dropped) for dropped in range(len(layout.droppable) + 1)]
    counted = iter(counter.pieces([_joined(parts) for both in kept for parts in both]))
    sides = tuple(zip(counted, counted, strict=True))
    sizes = [counter.sequence(pair).tokens for pair in sides]
    frame = Frame(sizes, layout.eager, are_turns_kept=layout.turn_priority == 0)
    return CountedLayout(sides, frame)


def _joined(parts: Sequence[Part]) -> str:
    """Parts that always stand together are counted together, so that no junction between them is in doubt."""
    return "".join([part.text for part in parts])


@dataclass(frozen=True, slots=True)
class Summary:
    """A text that covers a conversation up to the position ``until``; ``by`` says who wrote it: model, rule or app."""

    text: str
    until: int
    by: str


class Utterance(NamedTuple):
    """``lore`` are the places in the bot's lorebook of the entries that were told with it; ``recalled`` the positions of earlier turns that were shown again, ``passages`` their text. ``summary`` is of what was said before it."""

    sender: Sender
    content: str
    lore: tuple[int, ...] = ()
    position: int = 0
    recalled: tuple[int, ...] = ()
    passages: str = ""
    summary: Summary | None = None


class ChatTurn(Protocol):
    """An utterance, or a turn as clients send it."""

    @property
    def sender(self) -> Sender: ...

    @property
    def content(self) -> str: ...


KEPT_CHARS = 16_000_000  # of the texts of bots in use, and at most twice as much
_layouts: Generations[tuple[PromptFormatter, Bot, str], Layout] = Generations(KEPT_CHARS)


def formatter_layout(formatter: PromptFormatter, bot: Bot, user_name: str) -> Layout:
    """Make the layout of a formatter's templates, or return the one that was made before."""
    key = (formatter, bot, user_name)
    layout = _layouts.find(key)
    if layout is None:
        layout = _new_layout(formatter, bot, user_name)
        _layouts.keep(key, layout, chars_of(bot))
    return layout


def chars_of(bot: Bot) -> int:
    """Return about how many characters a bot and its layout hold in memory."""
    texts = (bot.memory, bot.prompt, bot.first_message, bot.post_history)
    book = bot.lorebook.entries if bot.lorebook else ()
    return 1_000 + 2 * sum(map(len, texts)) + sum(len(one.content) + 500 for one in book)


def _new_layout(formatter: PromptFormatter, bot: Bot, user_name: str) -> Layout:
    names = {"bot_name": bot.name, "user_name": user_name}
    bot_says = _around_message(formatter.bot_template, names)
    user_says = _around_message(formatter.user_template, names)

    def turn_text(turn: ChatTurn) -> str:
        says = bot_says if turn.sender is Sender.BOT else user_says
        line = turn.content.join(says)
        lore = lore_of(bot, turn)
        return f"{_narration(formatter, lore)}{line}" if lore else line

    return Layout(
        before=(
            Part(fill(formatter.memory_template, memory=persona(bot), **names)),
            Part(fill(formatter.prompt_template, prompt=bot.prompt, **names), priority=1),
        ),
        after=(
            *_post_history_parts(formatter, bot),
            Part(fill(formatter.response_template, **names)),
        ),
        turn_priority=2,
        turn_text=turn_text,
        made_of=(formatter, bot, user_name),
    )


def persona(bot: Bot) -> str:
    """Return the persona, with the entries of the lorebook that are always told."""
    always = constants(bot.lorebook)
    return "\n".join(text for text in (bot.memory, always) if text) if always else bot.memory


def lore_of(bot: Bot, turn: ChatTurn) -> str:
    """Return the entries that were told with a turn, the summary that it was shown with, and the earlier turns that were shown again."""
    places, passages = getattr(turn, "lore", ()), getattr(turn, "passages", "")
    summary: Summary | None = getattr(turn, "summary", None)
    entries = text_of(bot.lorebook, places) if places else ""
    if summary is None and not passages:
        return entries
    before = f"{SUMMARY_BEGINS}{summary.text}" if summary is not None else ""
    return "\n".join(text for text in (entries, before, passages) if text)


def content_with_lore(bot: Bot, turn: ChatTurn) -> str:
    """Return the message behind the entries that were told with it, for prompts that have no other place for them."""
    lore = lore_of(bot, turn)
    return f"[{lore}]\n\n{turn.content}" if lore else turn.content


def _post_history_parts(formatter: PromptFormatter, bot: Bot) -> tuple[Part, ...]:
    return (Part(_narration(formatter, bot.post_history)),) if bot.post_history else ()


def _narration(formatter: PromptFormatter, text: str) -> str:
    """Return a text between the turns that nobody says: as the persona is written where that template names nobody, else a line."""
    names_nobody = {field for _, field in parse_template(formatter.memory_template)} <= {
        "memory",
        None,
    }
    template = formatter.memory_template if names_nobody else REMINDER_LINE
    return fill(template, memory=text)


def layout_like(
    known: Layout | None, formatter: PromptFormatter, bot: Bot, user_name: str
) -> Layout:
    """``known`` if it is that one: more are in use than are kept here."""
    if known is not None and known.made_of == (formatter, bot, user_name):
        return known
    return formatter_layout(formatter, bot, user_name)


def _around_message(template: str, names: dict[str, str]) -> tuple[str, ...]:
    """Return the texts between which the message stands."""
    texts = [""]
    for literal, field in parse_template(template):
        texts[-1] += literal
        if field == "message":
            texts.append("")
        elif field is not None:
            texts[-1] += names.get(field, "")
    return tuple(texts)
