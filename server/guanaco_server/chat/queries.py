"""Every query on conversations and messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Subquery, and_, func, or_, select, update
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


async def conversation_counts(session: AsyncSession) -> dict[str, int]:
    """Conversations by submission."""
    rows = await session.execute(
        select(ConversationRow.submission_id, func.count()).group_by(ConversationRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def open_turns(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Replies that are being written, by submission."""
    rows = await session.execute(
        select(ConversationRow.submission_id, func.count())
        .where(ConversationRow.turn_until > now)
        .group_by(ConversationRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def open_conversations(
    session: AsyncSession, now: datetime, opened_after: datetime
) -> dict[str, int]:
    """Those with a reply being written, and those opened after a time; by submission."""
    rows = await session.execute(
        select(ConversationRow.submission_id, func.count())
        .where(
            or_(ConversationRow.turn_until > now, ConversationRow.created_at > opened_after),
        )
        .group_by(ConversationRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def seen_submissions(
    session: AsyncSession, account_id: str, user_id: str, competition: str
) -> Sequence[str]:
    """What a user of the account has had in a competition, least recently had first."""
    statement = (
        select(ConversationRow.submission_id)
        .where(
            ConversationRow.account_id == account_id,
            ConversationRow.user_id == user_id,
            ConversationRow.competition == competition,
        )
        .group_by(ConversationRow.submission_id)
        .order_by(func.max(ConversationRow.created_at), ConversationRow.submission_id)
    )
    return (await session.scalars(statement)).all()


async def mean_lengths(session: AsyncSession, groups: Subquery) -> dict[str, list[float]]:
    """Messages not deleted a conversation: of each unit's conversations the mean, by variant."""
    each = (
        select(groups.c.variant, groups.c.unit, func.count(MessageRow.id).label("length"))
        .select_from(groups)
        .outerjoin(
            MessageRow,
            and_(
                MessageRow.conversation_id == groups.c.conversation_id,
                MessageRow.is_deleted.is_(False),
            ),
        )
        .group_by(groups.c.variant, groups.c.unit, groups.c.conversation_id)
        .subquery()
    )
    mean = select(each.c.variant, func.avg(each.c.length)).group_by(each.c.variant, each.c.unit)
    return _by_variant(await session.execute(mean))


async def mean_reply_ms(session: AsyncSession, groups: Subquery) -> dict[str, list[float]]:
    """Of each unit's replies the mean time, by variant."""
    mean = (
        select(groups.c.variant, func.avg(MessageRow.total_ms))
        .select_from(groups)
        .join(MessageRow, MessageRow.conversation_id == groups.c.conversation_id)
        .where(MessageRow.total_ms.is_not(None))
        .group_by(groups.c.variant, groups.c.unit)
    )
    return _by_variant(await session.execute(mean))


def _by_variant(rows: Iterable[Row[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for variant, mean in rows:
        found.setdefault(variant, []).append(float(mean))
    return found


async def lengths(session: AsyncSession, conversation_ids: Sequence[str]) -> dict[str, int]:
    """Messages not deleted, by conversation."""
    rows = await session.execute(
        select(MessageRow.conversation_id, func.count())
        .where(MessageRow.conversation_id.in_(conversation_ids), MessageRow.is_deleted.is_(False))
        .group_by(MessageRow.conversation_id)
    )
    return {conversation_id: count for conversation_id, count in rows}


async def mark_deleted(session: AsyncSession, message_ids: Sequence[str]) -> None:
    await session.execute(
        update(MessageRow)
        .where(MessageRow.id.in_(message_ids))
        .values(is_deleted=True)
        .execution_options(synchronize_session=False)
    )
