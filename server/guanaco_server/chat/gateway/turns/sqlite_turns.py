"""The turn log's statements on SQLite: a batch is one transaction, and one trip to a thread.

SQLite has one writer. A transaction that comes back to the event loop between its statements holds the others up for as long
as the loop has other work: 30 to 180 ms a turn while strangers' requests came, on two busy cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, ClassVar

from guanaco.chat import Sender
from guanaco.errors import RequestInProgress
from guanaco_server.chat import queries
from guanaco_server.chat.gateway.turns.turn_log import (
    Continuation,
    EndedTurn,
    Lease,
    NewMessage,
    StoredMessage,
)
from guanaco_server.database.database import Database
from guanaco_server.database.sqlite.connection import ResultConnection
from guanaco_server.idempotency.keeping import AnswerToKeep

CLAIM = """
UPDATE conversations SET turn_token = ?, turn_until = ?
WHERE id IN (SELECT value FROM json_each(?)) AND (turn_token IS NULL OR turn_until < ?)
RETURNING id, message_count
"""
RENEW = "UPDATE conversations SET turn_until = ? WHERE id = ? AND turn_token = ?"
GIVE_BACK = """
UPDATE conversations SET turn_token = NULL, turn_until = NULL, message_count = message_count + ?
WHERE id = ? AND (turn_token = ? OR turn_token IS NULL AND message_count = ?)
RETURNING message_count
"""
STORE = """
INSERT INTO messages (
    id, conversation_id, position, sender, content, created_at, is_deleted, is_imported, finish_reason,
    prompt_tokens, completion_tokens, ttft_ms, total_ms, reward_score, lore, recalled, summary, original
) VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
REPLACE = "UPDATE messages SET is_deleted = 1 WHERE id IN (SELECT value FROM json_each(?))"
CONTINUE = """
UPDATE messages SET
    content = ?, original = original || ?, finish_reason = ?,
    completion_tokens = coalesce(completion_tokens, 0) + ?, total_ms = coalesce(total_ms, 0.0) + ?,
    reward_score = coalesce(?, reward_score)
WHERE id = ?
"""
IS_HELD = "SELECT 1 FROM idempotent_requests WHERE account_id = ? AND key_hash = ? AND token = ?"
ANSWER = """
UPDATE idempotent_requests SET answer = ?, token = NULL, claimed_until = NULL
WHERE account_id = ? AND key_hash = ? AND token = ?
"""


class SqliteTurns:
    groups_writes: ClassVar[bool] = True  # all that are urgent

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, conversation_ids: Sequence[str], token: str, now: datetime, until: datetime
    ) -> dict[str, int]:
        parameters = (token, _time(until), json.dumps(list(conversation_ids)), _time(now))

        def claim(connection: ResultConnection) -> dict[str, int]:
            return dict(connection.execute(CLAIM, parameters).fetchall().rows)

        return await self._database.write_at_once(claim, is_durable=False)

    async def renew(self, leases: Sequence[Lease], until: datetime) -> None:
        def renew(connection: ResultConnection) -> None:
            for lease in leases:
                connection.execute(RENEW, (_time(until), lease.conversation_id, lease.token))

        await self._database.write_at_once(renew, is_durable=False)

    async def end(self, turns: Sequence[EndedTurn]) -> set[str]:
        def end(connection: ResultConnection) -> set[str]:
            return {turn.lease.conversation_id for turn in turns if _end(connection, turn)}

        return await self._database.write_at_once(end)

    async def known(self, messages: Sequence[StoredMessage]) -> set[str]:
        async with self._database.read() as session:
            found = await queries.known_messages(session, [message.id for message in messages])
        return {
            message.id
            for message in messages
            if message.id in found and message.content in (None, found[message.id])
        }


def _end(connection: ResultConnection, turn: EndedTurn) -> bool:
    """Write a turn; False if its lease, or its request, is another's by now."""
    lease = turn.lease
    if turn.answer is not None and not _rows(connection, IS_HELD, _claim_of(turn.answer)):
        return False
    added = turn.message_count - lease.message_count
    counts = _rows(
        connection, GIVE_BACK, (added, lease.conversation_id, lease.token, lease.message_count)
    )
    if not counts:
        return False
    ((count,),) = counts
    is_changed = count - added != lease.message_count  # then a summary may tell what is erased
    for message in _messages(turn, count, has_summary=not is_changed):
        connection.execute(STORE, message)
    if turn.superseded:
        connection.execute(REPLACE, (json.dumps(turn.superseded),))
    if turn.continued is not None:
        connection.execute(CONTINUE, _added(turn.continued))
    if turn.answer is not None:
        stored = connection.execute(ANSWER, (turn.answer.sealed, *_claim_of(turn.answer)))
        if stored.fetchall().rowcount != 1:
            raise RequestInProgress
    return True


def _rows(connection: ResultConnection, sql: str, parameters: Sequence[Any]) -> list[Any]:
    return list(connection.execute(sql, parameters).fetchall().rows)


def _claim_of(answer: AnswerToKeep) -> tuple[str, str, str]:
    return answer.account_id, answer.key_hash, answer.token


def _added(more: Continuation) -> tuple[Any, ...]:
    counts = (more.completion_tokens, more.total_ms, more.reward_score)
    return more.content, more.appended, more.finish_reason, *counts, more.id


def _messages(turn: EndedTurn, count: int, *, has_summary: bool) -> Iterator[tuple[Any, ...]]:
    conversation_id = turn.lease.conversation_id
    if turn.asked is not None:
        position = count if turn.reply is None else count - 1
        begin = _beginning(turn.asked, conversation_id, position, Sender.USER)
        yield *begin, *[None] * 6, *_shown(turn.asked, has_summary=has_summary), None
    if (reply := turn.reply) is not None:
        begin = _beginning(reply, conversation_id, count, Sender.BOT)
        tokens = (reply.prompt_tokens, reply.completion_tokens)
        times = (reply.ttft_ms, reply.total_ms, reply.reward_score)
        yield *begin, reply.finish_reason, *tokens, *times, None, None, None, reply.original


def _beginning(
    message: NewMessage, conversation_id: str, position: int, sender: Sender
) -> tuple[Any, ...]:
    return (
        message.id, conversation_id, position, sender.value, message.content, _time(message.at),
    )  # fmt: skip


def _shown(asked: NewMessage, *, has_summary: bool) -> tuple[Any, ...]:
    """Return what else the prompt showed, as JSON."""
    summary = asked.summary if has_summary else None
    return (
        json.dumps(asked.lore) if asked.lore else None,
        json.dumps(asked.recalled) if asked.recalled else None,
        json.dumps(asdict(summary)) if summary is not None else None,
    )


def _time(at: datetime) -> str:
    """Write a time as SQLAlchemy does on SQLite."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
