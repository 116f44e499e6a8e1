"""Reads a conversation's history: one statement, no rows as objects; those that are wanted at the same time share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import psycopg
from sqlalchemy import Text, bindparam, func, select, type_coerce

from guanaco.chat import Bot, Sender
from guanaco.contract import reader
from guanaco.errors import ConversationNotFound, DatabaseUnavailable
from guanaco_server.chat.history import History
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.database.direct import text_array
from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.prompts.utterances import Utterance

AT_ONCE = 16  # histories of 20 messages hold the event loop for 2 ms

READ = """
SELECT c.id, c.account_id, c.submission_id, c.user_name, c.bot, c.message_count, c.experiment, c.variant, (
    SELECT json_agg(json_build_array(m.position, m.id, m.sender, m.content))
    FROM messages m WHERE m.conversation_id = c.id AND NOT m.is_deleted
)
FROM conversations c WHERE c.id = ANY($1::text[])
"""

READ_ONE = select(
    ConversationRow.id,
    ConversationRow.account_id,
    ConversationRow.submission_id,
    ConversationRow.user_name,
    type_coerce(ConversationRow.bot, Text),
    ConversationRow.message_count,
    ConversationRow.experiment,
    ConversationRow.variant,
    select(
        func.json_group_array(
            func.json_array(
                MessageRow.position, MessageRow.id, MessageRow.sender, MessageRow.content
            )
        )
    )
    .where(MessageRow.conversation_id == ConversationRow.id, MessageRow.is_deleted.is_(False))
    .correlate(ConversationRow)
    .scalar_subquery(),
).where(ConversationRow.id == bindparam("conversation_id"))

MESSAGES = msgspec.json.Decoder(list[tuple[int, str, str, str]])
SENDERS = {sender.value: sender for sender in Sender}
BOTS = reader(Bot)


class HistoryReader(Protocol):
    async def read(self, conversation_id: str) -> History:
        """ConversationNotFound, DatabaseUnavailable."""
        ...


def history_reader(database: Database) -> HistoryReader:
    """The one for its kind."""
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
        except (psycopg.OperationalError, OSError) as error:
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


def _history(row: Sequence[Any]) -> History:
    """Make the history of a row as either statement gives it.

    A message whose sender only a newer version knows is left out: no prompt of this version can name it.
    """
    conversation_id, account_id, submission_id, user_name, bot, count, experiment, variant, kept = (
        row
    )
    kept_messages = sorted(MESSAGES.decode(kept)) if kept else []
    messages = [message for message in kept_messages if message[2] in SENDERS]
    asked = [place for place, message in enumerate(messages) if message[2] == Sender.USER]
    return History(
        conversation_id=conversation_id,
        account_id=account_id,
        submission_id=submission_id,
        user_name=user_name,
        bot=BOTS.from_json(bot),
        message_count=int(count),
        variant=(experiment, variant) if experiment and variant else None,
        turns=[Utterance(SENDERS[sender], content) for _, _, sender, content in messages],
        tail=[message[1] for message in messages[asked[-1] + 1 if asked else 0 :]],
    )
