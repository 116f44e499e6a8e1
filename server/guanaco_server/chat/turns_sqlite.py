"""The turn log's writes on SQLite: a batch in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Sender
from guanaco_server.chat import queries
from guanaco_server.chat.tables import MessageRow
from guanaco_server.chat.turn_log import EndedTurn, Lease
from guanaco_server.database.database import Database


class SqliteTurns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, conversation_ids: Sequence[str], token: str, now: datetime, until: datetime
    ) -> dict[str, int]:
        async with self._database.write() as session:
            return await queries.take_turns(session, conversation_ids, token, now, until)

    async def renew(self, leases: Sequence[Lease], until: datetime) -> None:
        async with self._database.write() as session:
            for lease in leases:
                await queries.renew_turn(session, lease.conversation_id, lease.token, until)

    async def end(self, turns: Sequence[EndedTurn]) -> set[str]:
        async with self._database.write() as session:
            return {
                turn.lease.conversation_id for turn in turns if await self._end_one(session, turn)
            }

    async def known(self, message_ids: Sequence[str]) -> set[str]:
        async with self._database.read() as session:
            return await queries.known_messages(session, message_ids)

    @staticmethod
    async def _end_one(session: AsyncSession, turn: EndedTurn) -> bool:
        added = turn.message_count - turn.lease.message_count
        lease = turn.lease
        count = await queries.give_turn_back(
            session, lease.conversation_id, lease.token, lease.message_count, added
        )
        if count is None:
            return False
        session.add_all(_rows(turn, count))
        await queries.mark_deleted(session, turn.superseded)
        return True


def _rows(turn: EndedTurn, count: int) -> list[MessageRow]:
    rows = []
    if turn.asked is not None:
        rows.append(
            MessageRow(
                id=turn.asked.id,
                conversation_id=turn.lease.conversation_id,
                position=count if turn.reply is None else count - 1,
                sender=Sender.USER,
                content=turn.asked.content,
                created_at=turn.asked.at,
                is_deleted=False,
            )
        )
    if turn.reply is not None:
        rows.append(
            MessageRow(
                id=turn.reply.id,
                conversation_id=turn.lease.conversation_id,
                position=count,
                sender=Sender.BOT,
                content=turn.reply.content,
                created_at=turn.reply.at,
                is_deleted=False,
                finish_reason=turn.reply.finish_reason,
                prompt_tokens=turn.reply.prompt_tokens,
                completion_tokens=turn.reply.completion_tokens,
                ttft_ms=turn.reply.ttft_ms,
                total_ms=turn.reply.total_ms,
                reward_score=turn.reply.reward_score,
            )
        )
    return rows
