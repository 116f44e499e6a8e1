"""The turn log's statements on PostgreSQL: a batch is one statement with JSON parameters. SQLite's are in sqlite_turns.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, LiteralString

import msgspec

from guanaco.chat import Sender
from guanaco_server.chat.gateway.turns.turn_log import EndedTurn, Lease, NewReply, StoredMessage
from guanaco_server.database.database import Database
from guanaco_server.database.postgresql.direct import text_array
from guanaco_server.idempotency import keeping

CLAIM = """
UPDATE conversations SET turn_token = $2, turn_until = $4
WHERE id = ANY($1::text[]) AND (turn_token IS NULL OR turn_until < $3)
RETURNING id, message_count
"""

RENEW = """
UPDATE conversations SET turn_until = $2
FROM jsonb_to_recordset($1::jsonb) AS l(id text, token text)
WHERE conversations.id = l.id AND conversations.turn_token = l.token
RETURNING conversations.id
"""

TURNS = """turns AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS t(id text, token text, known int, added int)
)"""

KEPT_ANSWERS = f"""kept_answers AS (
    SELECT * FROM jsonb_to_recordset($n::jsonb) AS k(
        id text, account_id text, key_hash text, token text, answer text
    )
), held AS ({keeping.HELD})"""  # noqa: S608 - of constants

GIVEN_BACK = """given_back AS (
    UPDATE conversations SET
        turn_token = NULL, turn_until = NULL,
        message_count = conversations.message_count + turns.added
    FROM turns WHERE conversations.id = turns.id AND (
        conversations.turn_token = turns.token
        OR conversations.turn_token IS NULL AND conversations.message_count = turns.known
    ) AND is_ours
    RETURNING conversations.id, conversations.message_count,
        conversations.message_count - turns.added <> turns.known AS is_changed
)"""
IS_HELD = """(
        NOT EXISTS (SELECT 1 FROM kept_answers k WHERE k.id = turns.id)
        OR EXISTS (SELECT 1 FROM held WHERE held.id = turns.id)
    )"""

STORED = """stored AS (
    INSERT INTO messages (
        id, conversation_id, position, sender, content, created_at, is_deleted, finish_reason,
        prompt_tokens, completion_tokens, ttft_ms, total_ms, reward_score, lore, recalled, summary,
        original
    )
    SELECT m.id, m.conversation_id, given_back.message_count - m.before_last, m.sender, m.content,
        m.created_at, false, m.finish_reason, m.prompt_tokens, m.completion_tokens, m.ttft_ms, m.total_ms,
        m.reward_score, m.lore, m.recalled,
        CASE WHEN NOT given_back.is_changed THEN m.summary END, m.original
    FROM jsonb_to_recordset($2::jsonb) AS m(
        id text, conversation_id text, before_last int, sender text, content text,
        created_at timestamptz, finish_reason text, prompt_tokens int, completion_tokens int,
        ttft_ms float8, total_ms float8, reward_score float8, lore jsonb, recalled jsonb, summary jsonb,
        original text
    ) JOIN given_back ON given_back.id = m.conversation_id
)"""

REPLACED = """replaced AS (
    UPDATE messages SET is_deleted = true
    FROM jsonb_to_recordset($n::jsonb) AS s(id text, conversation_id text)
    JOIN given_back ON given_back.id = s.conversation_id
    WHERE messages.id = s.id AND messages.conversation_id = given_back.id
)"""

CONTINUED = """continued AS (
    UPDATE messages SET
        content = c.content,
        original = messages.original || c.appended,
        finish_reason = c.finish_reason,
        completion_tokens = coalesce(messages.completion_tokens, 0) + c.completion_tokens,
        total_ms = coalesce(messages.total_ms, 0) + c.total_ms,
        reward_score = coalesce(c.reward_score, messages.reward_score)
    FROM jsonb_to_recordset($n::jsonb) AS c(
        id text, conversation_id text, content text, appended text, finish_reason text,
        completion_tokens int, total_ms float8, reward_score float8
    ) JOIN given_back ON given_back.id = c.conversation_id
    WHERE messages.id = c.id AND messages.conversation_id = given_back.id
)"""

ANSWERED = f"""answered_ids AS (SELECT id FROM given_back), answered AS ({keeping.ANSWERED})"""  # noqa: S608


@cache
def end_statement(
    *, has_answers: bool = False, has_replaced: bool = False, has_continued: bool = False
) -> LiteralString:
    """Return the statement that ends turns, without the parts that these turns do not need.

    An UPDATE of ``messages`` opens each of their partitions, which costs more than the rest of a turn together. The
    parameters are the turns, their messages, and then those of the parts in the order of the arguments.
    """
    numbers = iter(("$3", "$4", "$5"))
    parts: list[LiteralString] = [TURNS]
    if has_answers:
        parts.append(KEPT_ANSWERS.replace("$n", next(numbers)))
    parts += (GIVEN_BACK.replace("is_ours", IS_HELD if has_answers else "true"), STORED)
    if has_replaced:
        parts.append(REPLACED.replace("$n", next(numbers)))
    if has_continued:
        parts.append(CONTINUED.replace("$n", next(numbers)))
    if has_answers:
        parts.append(ANSWERED)
    return "WITH " + ", ".join(parts) + " SELECT id FROM given_back"  # noqa: S608 - of constants


KNOWN = """
SELECT messages.id FROM messages
JOIN jsonb_to_recordset($1::jsonb) AS k(id text, content text) ON k.id = messages.id
WHERE k.content IS NULL OR k.content = messages.content
"""


class PostgresqlTurns:
    groups_writes: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        self._claims = database.direct(is_durable=False)
        self._ends = database.direct()

    async def claim(
        self, conversation_ids: Sequence[str], token: str, now: datetime, until: datetime
    ) -> dict[str, int]:
        parameters = (text_array(conversation_ids), token, now.isoformat(), until.isoformat())
        rows = await self._claims.fetch(CLAIM, parameters)
        return {conversation_id: int(count) for conversation_id, count in rows}

    async def renew(self, leases: Sequence[Lease], until: datetime) -> None:
        held = [{"id": lease.conversation_id, "token": lease.token} for lease in leases]
        await self._claims.fetch(RENEW, (msgspec.json.encode(held), until.isoformat()))

    async def end(self, turns: Sequence[EndedTurn]) -> set[str]:
        answers = [one for turn in turns for one in _answer(turn)]
        replaced = [
            {"id": message_id, "conversation_id": turn.lease.conversation_id}
            for turn in turns
            for message_id in turn.superseded
        ]
        continued = [one for turn in turns for one in _continued(turn)]
        statement = end_statement(
            has_answers=bool(answers), has_replaced=bool(replaced), has_continued=bool(continued)
        )
        parameters = [
            msgspec.json.encode([_turn(turn) for turn in turns]),
            msgspec.json.encode([message for turn in turns for message in _messages(turn)]),
            *(msgspec.json.encode(rows) for rows in (answers, replaced, continued) if rows),
        ]
        return {found for (found,) in await self._ends.fetch(statement, parameters)}

    async def known(self, messages: Sequence[StoredMessage]) -> set[str]:
        rows = await self._ends.fetch(KNOWN, (msgspec.json.encode(messages),))
        return {found for (found,) in rows}


def _turn(turn: EndedTurn) -> dict[str, Any]:
    lease = turn.lease
    added = turn.message_count - lease.message_count
    return {
        "id": lease.conversation_id,
        "token": lease.token,
        "known": lease.message_count,
        "added": added,
    }


def _continued(turn: EndedTurn) -> list[dict[str, Any]]:
    if turn.continued is None:
        return []
    return [{"conversation_id": turn.lease.conversation_id, **asdict(turn.continued)}]


def _answer(turn: EndedTurn) -> list[dict[str, Any]]:
    answer = turn.answer
    if answer is None:
        return []
    return [
        {
            "id": turn.lease.conversation_id,
            "account_id": answer.account_id,
            "key_hash": answer.key_hash,
            "token": answer.token,
            "answer": answer.sealed,  # as base64, which is how JSON holds bytes here
        }
    ]


def _messages(turn: EndedTurn) -> list[dict[str, Any]]:
    messages = []
    if turn.asked is not None:
        messages.append(
            {
                "id": turn.asked.id,
                "conversation_id": turn.lease.conversation_id,
                "before_last": 0 if turn.reply is None else 1,
                "sender": Sender.USER,
                "content": turn.asked.content,
                "created_at": turn.asked.at,
                "lore": turn.asked.lore or None,
                "recalled": turn.asked.recalled or None,
                "summary": turn.asked.summary,
            }
        )
    if turn.reply is not None:
        messages.append(_reply(turn.lease.conversation_id, turn.reply))
    return messages


def _reply(conversation_id: str, reply: NewReply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "conversation_id": conversation_id,
        "before_last": 0,
        "sender": Sender.BOT,
        "content": reply.content,
        "created_at": reply.at,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "original": reply.original,
        "ttft_ms": reply.ttft_ms,
        "total_ms": reply.total_ms,
        "reward_score": reply.reward_score,
    }
