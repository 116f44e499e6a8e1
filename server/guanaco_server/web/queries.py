"""Every query on the pages' own tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.web.tables import SessionRow, VisitorChatRow, VisitorRow


async def live_session(session: AsyncSession, session_id: str, now: datetime) -> SessionRow | None:
    return await session.scalar(
        select(SessionRow).where(SessionRow.id == session_id, SessionRow.expires_at > now)
    )


async def remove_session(session: AsyncSession, session_id: str) -> None:
    await session.execute(delete(SessionRow).where(SessionRow.id == session_id))


async def remove_expired(session: AsyncSession, now: datetime) -> None:
    await session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))


async def chat_of(
    session: AsyncSession, visitor_id: str, conversation_id: str
) -> VisitorChatRow | None:
    return await session.scalar(
        select(VisitorChatRow).where(
            VisitorChatRow.conversation_id == conversation_id,
            VisitorChatRow.visitor_id == visitor_id,
        )
    )


async def stop_orders(session: AsyncSession, conversation_ids: Sequence[str]) -> dict[str, str]:
    """Return the turn that is to be stopped in each of these conversations where one is."""
    chat = VisitorChatRow
    found = await session.execute(
        select(chat.conversation_id, chat.stopped_turn).where(
            chat.conversation_id.in_(conversation_ids), chat.stopped_turn.is_not(None)
        )
    )
    return {conversation_id: turn for conversation_id, turn in found if turn is not None}


async def chats_of(session: AsyncSession, visitor_id: str, limit: int) -> Sequence[VisitorChatRow]:
    """Read the visitor's chats, the newest first."""
    statement = (
        select(VisitorChatRow)
        .where(VisitorChatRow.visitor_id == visitor_id)
        .order_by(VisitorChatRow.created_at.desc(), VisitorChatRow.conversation_id)
        .limit(limit)
    )
    return (await session.scalars(statement)).all()


async def chat_count(session: AsyncSession, visitor_id: str, since: datetime) -> int:
    statement = select(func.count()).where(
        VisitorChatRow.visitor_id == visitor_id, VisitorChatRow.created_at >= since
    )
    return await session.scalar(statement) or 0


async def forget_visitor(session: AsyncSession, visitor_id: str) -> None:
    await session.execute(delete(VisitorChatRow).where(VisitorChatRow.visitor_id == visitor_id))
    await session.execute(delete(VisitorRow).where(VisitorRow.id == visitor_id))


async def lock_visitor(session: AsyncSession, visitor_id: str) -> VisitorRow | None:
    return await session.get(VisitorRow, visitor_id, with_for_update=True)


async def visitors_between(session: AsyncSession, first: str, last: str) -> Sequence[str]:
    return (
        await session.scalars(select(VisitorRow.id).where(VisitorRow.id.between(first, last)))
    ).all()
