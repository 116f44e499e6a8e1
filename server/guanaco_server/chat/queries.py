"""Every query on conversations and messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import was_changed


async def by_id(session: AsyncSession, conversation_id: str) -> ConversationRow | None:
    return await session.get(ConversationRow, conversation_id)


async def messages_of(
    session: AsyncSession, conversation_ids: Sequence[str]
) -> Sequence[MessageRow]:
    """Every message, deleted ones too, in the order of the conversation."""
    return (
        await session.scalars(
            select(MessageRow)
            .where(MessageRow.conversation_id.in_(conversation_ids))
            .order_by(MessageRow.conversation_id, MessageRow.position)
        )
    ).all()


async def take_turn(
    session: AsyncSession, conversation_id: str, token: str, now: datetime, until: datetime
) -> bool:
    """Take the lease if it is free or has run out."""
    taken = await session.execute(
        update(ConversationRow)
        .where(
            ConversationRow.id == conversation_id,
            or_(ConversationRow.turn_token.is_(None), ConversationRow.turn_until < now),
        )
        .values(turn_token=token, turn_until=until)
        .execution_options(synchronize_session=False)
    )
    return was_changed(taken)


async def release_turn(session: AsyncSession, conversation_id: str, token: str) -> bool:
    """Give the lease back; False if it was no longer ours."""
    released = await session.execute(
        update(ConversationRow)
        .where(ConversationRow.id == conversation_id, ConversationRow.turn_token == token)
        .values(turn_token=None, turn_until=None)
        .execution_options(synchronize_session=False)
    )
    return was_changed(released)


async def next_position(session: AsyncSession, conversation_id: str) -> int:
    """Counted in the conversation's row; the caller holds the turn."""
    position = await session.scalar(
        update(ConversationRow)
        .where(ConversationRow.id == conversation_id)
        .values(message_count=ConversationRow.message_count + 1)
        .returning(ConversationRow.message_count)
        .execution_options(synchronize_session=False)
    )
    assert position is not None
    return position


async def open_turns(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Replies that are being written, by submission."""
    rows = await session.execute(
        select(ConversationRow.submission_id, func.count())
        .where(ConversationRow.turn_until > now)
        .group_by(ConversationRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def mark_deleted(session: AsyncSession, message_ids: Sequence[str]) -> None:
    await session.execute(
        update(MessageRow)
        .where(MessageRow.id.in_(message_ids))
        .values(is_deleted=True)
        .execution_options(synchronize_session=False)
    )
