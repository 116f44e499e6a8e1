"""What is known of the conversations that are talked in now: read once, kept in memory within a limit.

A history is the whole one while the conversation's ``message_count``, which every turn reads with its lease, is still
the same; so any gateway process may serve any turn.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

from guanaco.chat import Bot, Sender
from guanaco_server.prompts.transcript import Transcript
from guanaco_server.prompts.utterances import Utterance

TURN_CHARS = 150  # a turn's objects, in characters of text
HISTORY_CHARS = 3_000  # what there is once, its layout included
KEPT_BOTS = 1_024


@dataclass(slots=True)
class History:
    """``turns`` are the messages that are not deleted; ``tail`` are the ids of those after the last user message, ``variant`` is of an experiment."""

    conversation_id: str
    account_id: str
    submission_id: str
    user_name: str
    bot: Bot
    message_count: int
    variant: tuple[str, str] | None = None
    turns: list[Utterance] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    transcript: Transcript = field(default_factory=Transcript, compare=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.bot = bot = _shared(self.bot)
        texts = (bot.name, bot.memory, bot.prompt, bot.first_message)
        self.size = HISTORY_CHARS + sum(map(len, texts)) + sum(map(_size, self.turns))

    @property
    def has_asked(self) -> bool:
        """Whether there is a user message to answer."""
        return len(self.turns) > len(self.tail)

    def asked(self, content: str) -> None:
        self._add(Utterance(Sender.USER, content))
        self.tail.clear()

    def replied(self, message_id: str, content: str) -> None:
        """In place of what came after the last user message."""
        for turn in self.turns[len(self.turns) - len(self.tail) :]:
            self.size -= _size(turn)
        del self.turns[len(self.turns) - len(self.tail) :]
        self._add(Utterance(Sender.BOT, content))
        self.tail[:] = [message_id]

    def _add(self, turn: Utterance) -> None:
        self.turns.append(turn)
        self.size += _size(turn)


class HistoryCache:
    """The most recently used ones, up to ``limit_chars`` in all."""

    def __init__(self, limit_chars: int) -> None:
        self._limit_chars = limit_chars
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._size = 0

    def take(self, conversation_id: str) -> History | None:
        """Out of the cache; whoever has it puts it back with ``keep``."""
        history = self._histories.pop(conversation_id, None)
        if history is not None:
            self._size -= history.size
        return history

    def keep(self, history: History) -> None:
        self.forget(history.conversation_id)
        self._histories[history.conversation_id] = history
        self._size += history.size
        while self._size > self._limit_chars:
            _, oldest = self._histories.popitem(last=False)
            self._size -= oldest.size

    def forget(self, conversation_id: str) -> None:
        self.take(conversation_id)


@lru_cache(maxsize=KEPT_BOTS)
def _shared(bot: Bot) -> Bot:
    """One object for all the conversations with a bot."""
    return bot


def _size(turn: Utterance) -> int:
    """Its text is there twice, the second time as it stands in the prompt."""
    return 2 * len(turn.content) + TURN_CHARS
