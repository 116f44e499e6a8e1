"""Reads the histories of active conversations and keeps them in memory, within a limit.

A history is complete while its ``message_count`` equals the conversation's, which each turn reads with its lease. Any
gateway process may therefore serve any turn. A history is read with one statement and without ORM objects; PostgreSQL
readers that wait at the same time share a statement.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol

import msgspec
from sqlalchemy import Text, bindparam, func, select, type_coerce

from guanaco.chat import Bot, Sender
from guanaco.competitions import OPEN
from guanaco.contract import reader
from guanaco.errors import ConversationNotFound, DatabaseUnavailable
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.database.postgresql.direct import lost_connection, text_array
from guanaco_server.prompts.counting import Generations
from guanaco_server.prompts.history import lore, recall, summaries
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.layouts import Summary, Utterance, chars_of, lore_of
from guanaco_server.routing.prefixes import SharedPrefix, shared_prefix

TURN_CHARS = 150  # a turn's objects, in characters of text
RECALL_PART = 4  # recalled turns take at most this part of a prompt
HISTORY_CHARS = 3_000  # what there is once, its layout included
KEPT_BOTS_CHARS = 16_000_000  # and at most twice as much
HISTORY_CACHE_CHARS = (
    64_000_000  # conversations kept in memory, so that a turn need not read them again
)


@dataclass(slots=True)
class History:
    """``turns`` are the messages that are not deleted; ``tail`` are the ids of those after the last user message, ``variant`` is of an experiment, ``began_at`` in seconds since 1970.

    ``written`` is a summary that was not shown yet: it will be with the user's next message. Nothing worth telling was found up to
    ``tried_until``. What was said up to ``forgotten_until`` is not remembered. ``change_count`` counts changes of older messages. ``prefix`` is what its prompts begin with, as other conversations' may.
    """

    conversation_id: str
    account_id: str
    submission_id: str
    user_id: str
    user_name: str
    bot: Bot
    message_count: int
    competition: str = OPEN
    variant: tuple[str, str] | None = None
    began_at: float = field(default=0.0, compare=False)  # SQLite gives it to some 0.05 ms
    turns: list[Utterance] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    is_last_imported: bool = False
    forgotten_until: int = 0
    change_count: int = 0
    tried_until: int = 0
    written: Summary | None = field(default=None, compare=False)
    prefix: SharedPrefix | None = field(default=None, compare=False)
    transcript: Transcript = field(default_factory=Transcript, compare=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.bot = bot = _shared(self.bot)
        self.prefix = shared_prefix(self.account_id, bot)
        texts = (bot.name, bot.memory, bot.prompt, bot.first_message, bot.post_history)
        self.size = HISTORY_CHARS + sum(map(len, texts)) + sum(map(self._size, self.turns))

    @property
    def has_asked(self) -> bool:
        """Return whether there is a user message to answer."""
        return len(self.turns) > len(self.tail)

    @property
    def questions(self) -> int:
        """Return how many messages of the user there are."""
        return sum(turn.sender is Sender.USER for turn in self.turns)

    @property
    def begun(self) -> str | None:
        """The model's last reply, which could go on; None where the last message is none."""
        can_go_on = bool(self.tail) and self.has_asked and not self.is_last_imported
        return self.turns[-1].content if can_go_on else None

    async def ask(self, content: str) -> Utterance:
        """Add the user's message, with the entries of the lorebook that are told with it. The caller holds the turn."""
        return self.asked(await lore.ask(self.bot, self.turns, content))

    def asked(self, turn: Utterance) -> Utterance:
        """Add the user's message, whose position follows from those before."""
        turn = turn._replace(position=self.message_count + 1)
        self._add(turn)
        self.tail.clear()
        return turn

    async def recall(self, prompt_tokens: int, budget: int) -> tuple[int, ...]:
        """Show earlier turns again with the message that was just asked; return their positions."""
        earlier, turn = self.turns[:-1], self.turns[-1]
        found = await recall.recall(
            earlier,
            turn.content,
            room=self._room(prompt_tokens),
            budget=min(budget, prompt_tokens // RECALL_PART),
            forgotten_until=self.forgotten_until,
        )
        if found:
            text = recall.passages(self.bot, earlier, found)
            self._replace_newest(turn._replace(recalled=found, passages=text))
        return found

    def show_summary(self, prompt_tokens: int, budget: int) -> Summary | None:
        """Show the summary that was written meanwhile with the message that was just asked."""
        written, self.written = self.written, None
        if written is None:
            return None
        budget = self.summary_budget(prompt_tokens, budget)
        shown = replace(written, text=summaries.within_budget(written.text, budget))
        self._replace_newest(self.turns[-1]._replace(summary=shown))
        return shown

    def unsummarized(self, prompt_tokens: int) -> summaries.Unsummarized | None:
        """Return what the next summary is to be made of; None while none is due."""
        if self.written is not None:
            return None
        return summaries.unsummarized(
            self.turns,
            room=self._room(prompt_tokens),
            forgotten_until=self.forgotten_until,
            tried_until=self.tried_until,
        )

    def summary_budget(self, prompt_tokens: int, budget: int) -> int:
        """Return the tokens that one summary may take."""
        return summaries.summary_budget(prompt_tokens, self._fixed_texts, budget)

    def note_written(self, summary: Summary) -> None:
        """Take what was written: to be shown, or nothing, so that it is not tried again at once."""
        if summary.text:
            self.written = summary
        else:
            self.tried_until = summary.until

    def _room(self, prompt_tokens: int) -> int:
        """Estimate the tokens that a prompt has for turns."""
        return summaries.room_of(prompt_tokens, self._fixed_texts)

    @property
    def _fixed_texts(self) -> tuple[str, ...]:
        return self.bot.memory, self.bot.prompt, self.bot.post_history

    def _replace_newest(self, turn: Utterance) -> None:
        self.size -= self._size(self.turns.pop())
        self._add(turn)

    def replied(self, message_id: str, content: str) -> None:
        """Replace what came after the last user message with the new reply, which is counted already."""
        for turn in self.turns[len(self.turns) - len(self.tail) :]:
            self.size -= self._size(turn)
        del self.turns[len(self.turns) - len(self.tail) :]
        self._add(Utterance(Sender.BOT, content, position=self.message_count))
        self.tail[:] = [message_id]
        self.is_last_imported = False

    def continued(self, content: str) -> None:
        """Replace the last reply's text with the longer one."""
        self._replace_newest(self.turns[-1]._replace(content=content))

    def _add(self, turn: Utterance) -> None:
        self.turns.append(turn)
        self.size += self._size(turn)

    def _size(self, turn: Utterance) -> int:
        """Its text is there twice, the second time as it stands in the prompt, with what is told there."""
        return 2 * len(turn.content) + len(lore_of(self.bot, turn)) + TURN_CHARS


class HistoryCache:
    """Keeps the most recently used histories, up to ``limit_chars`` in all."""

    def __init__(self, limit_chars: int = HISTORY_CACHE_CHARS) -> None:
        self._limit_chars = limit_chars
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._size = 0

    def take(self, conversation_id: str) -> History | None:
        """Take a history out of the cache. The caller puts it back with ``keep``."""
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


_bots: Generations[Bot, Bot] = Generations(KEPT_BOTS_CHARS)


def _shared(bot: Bot) -> Bot:
    """Return one object for all the conversations with a bot."""
    found = _bots.find(bot)
    if found is None:
        _bots.keep(bot, bot, chars_of(bot))
        return bot
    return found


AT_ONCE = 16  # histories of 20 messages hold the event loop for 2 ms

READ = """
SELECT c.id, c.account_id, c.submission_id, c.user_id, c.user_name, c.bot, c.message_count, c.competition,
c.experiment, c.variant, extract(epoch FROM c.created_at), c.forgotten_until, c.change_count, c.carried, c.written, (
    SELECT json_agg(json_build_array(m.position, m.id, m.sender, m.content, m.is_imported, m.lore, m.recalled, m.summary))
    FROM messages m WHERE m.conversation_id = c.id AND NOT m.is_deleted
)
FROM conversations c WHERE c.id = ANY($1::text[])
"""

EPOCH_DAY, DAY_S = 2_440_587.5, 86_400.0  # SQLite counts days; exact to some 0.05 ms
READ_ONE = select(
    ConversationRow.id,
    ConversationRow.account_id,
    ConversationRow.submission_id,
    ConversationRow.user_id,
    ConversationRow.user_name,
    type_coerce(ConversationRow.bot, Text),
    ConversationRow.message_count,
    ConversationRow.competition,
    ConversationRow.experiment,
    ConversationRow.variant,
    (func.julianday(ConversationRow.created_at) - EPOCH_DAY) * DAY_S,
    ConversationRow.forgotten_until,
    ConversationRow.change_count,
    type_coerce(ConversationRow.carried, Text),
    type_coerce(ConversationRow.written, Text),
    select(
        func.json_group_array(
            func.json_array(
                MessageRow.position,
                MessageRow.id,
                MessageRow.sender,
                MessageRow.content,
                MessageRow.is_imported,
                func.json(type_coerce(MessageRow.lore, Text)),
                func.json(type_coerce(MessageRow.recalled, Text)),
                func.json(type_coerce(MessageRow.summary, Text)),
            )
        )
    )
    .where(MessageRow.conversation_id == ConversationRow.id, MessageRow.is_deleted.is_(False))
    .correlate(ConversationRow)
    .scalar_subquery(),
).where(ConversationRow.id == bindparam("conversation_id"))

Places = tuple[int, ...] | None
MESSAGES = msgspec.json.Decoder(
    list[tuple[int, str, str, str, bool | int, Places, Places, Summary | None]]
)
CARRIED = msgspec.json.Decoder(dict[str, Any])
WRITTEN = msgspec.json.Decoder(Summary)
SENDERS = {sender.value: sender for sender in Sender}
BOTS = reader(Bot)


class HistoryReader(Protocol):
    async def read(self, conversation_id: str) -> History:
        """ConversationNotFound, DatabaseUnavailable."""
        ...


def history_reader(database: Database) -> HistoryReader:
    """Return the reader for the kind of database."""
    is_postgresql = database.engine.dialect.name == "postgresql"
    return PostgresqlHistoryReader(database) if is_postgresql else SqliteHistoryReader(database)


class PostgresqlHistoryReader:
    def __init__(self, database: Database) -> None:
        self._connection = database.direct()
        self._rows: GroupCommit[str, Sequence[Any] | None] = GroupCommit(
            self._read, max_batch=AT_ONCE
        )

    async def read(self, conversation_id: str) -> History:
        try:
            row = (
                await self._rows.submit(conversation_id) if _is_storable(conversation_id) else None
            )
        except lost_connection() as error:
            raise DatabaseUnavailable from error
        if row is None:
            raise ConversationNotFound(conversation_id)
        return _history(row)

    async def _read(
        self, conversation_ids: Sequence[str]
    ) -> list[Sequence[Any] | Exception | None]:
        rows = await self._connection.fetch(READ, (text_array(set(conversation_ids)),))
        found = {row[0]: row for row in rows}
        return [found.get(conversation_id) for conversation_id in conversation_ids]


class SqliteHistoryReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, conversation_id: str) -> History:
        if not _is_storable(conversation_id):
            raise ConversationNotFound(conversation_id)
        async with self._database.read() as session:
            rows = await session.execute(READ_ONE, {"conversation_id": conversation_id})
            row = rows.one_or_none()
        if row is None:
            raise ConversationNotFound(conversation_id)
        return _history(row)


def _is_storable(conversation_id: str) -> bool:
    """A NUL or half a character would fail those that share its statement, too."""
    return conversation_id.isprintable()


def carried_summary(carried: Mapping[str, Any] | None) -> Summary | None:
    """Return what a conversation carries from the last one, as the summary that its first message is shown with."""
    return Summary(carried["text"], 0, "rule") if carried else None


def _history(row: Sequence[Any]) -> History:
    """Make the history of a row as either statement gives it.

    A message whose sender only a newer version knows is left out: no prompt of this version can name it.
    """
    conversation_id, account_id, submission_id, user_id, user_name, bot, *rest = row
    count, competition, experiment, variant, began_at, *memory, kept = rest
    forgotten_until, change_count, carried, written = memory
    kept_messages = sorted(MESSAGES.decode(kept), key=itemgetter(0)) if kept else []
    messages = [message for message in kept_messages if message[2] in SENDERS]
    asked = [place for place, message in enumerate(messages) if message[2] == Sender.USER]
    read_bot = BOTS.from_json(bot)
    history = History(
        conversation_id=conversation_id,
        account_id=account_id,
        submission_id=submission_id,
        user_id=user_id,
        user_name=user_name,
        bot=read_bot,
        message_count=int(count),
        competition=competition,
        variant=(experiment, variant) if experiment and variant else None,
        began_at=float(began_at),
        turns=_turns(read_bot, messages),
        tail=[message[1] for message in messages[asked[-1] + 1 if asked else 0 :]],
        is_last_imported=bool(messages and messages[-1][4]),
        forgotten_until=int(forgotten_until),
        change_count=int(change_count),
    )
    _note_unshown(history, carried, written)
    return history


def _note_unshown(history: History, carried: str | None, written: str | None) -> None:
    """Take what was carried or written and is in no message yet."""
    shown = summaries.last_shown(history.turns)
    until = -1 if shown is None or shown.summary is None else shown.summary.until
    if shown is None and carried:
        history.written = carried_summary(CARRIED.decode(carried))
    if written and (waiting := WRITTEN.decode(written)).until > until:
        history.note_written(waiting)


def _turns(bot: Bot, messages: Sequence[Sequence[Any]]) -> list[Utterance]:
    turns = [
        Utterance(SENDERS[sender], content, lore or (), position, recalled or (), summary=summary)
        for position, _, sender, content, _, lore, recalled, summary in messages
    ]
    return [
        turn._replace(passages=recall.passages(bot, turns, turn.recalled))
        if turn.recalled
        else turn
        for turn in turns
    ]
