"""Carries what was remembered of a user and a character from their last conversation into a new one.

    last conversation: its newest summary + what was said since  →  a digest  →  the new one's ``carried``

It is written by the rule when the new conversation is opened, shown with its first message, and goes on in its summaries. When a
conversation is erased, so is what others carry of it, with their summaries, which are written again from their own messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from guanaco_server.chat.memory.digest import digest
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.prompts.layouts import Utterance
from guanaco_server.runtime import threads

CARRIED_TOKENS = 256
MOST_MESSAGES = 200  # of the last conversation, the newest ones


async def carried_into(
    database: Database, account_id: str, user_id: str, character: str
) -> dict[str, Any] | None:
    """Return what a new conversation carries; None where there was none before, or nothing is worth it.

    Args:
        database: Where conversations are.
        account_id: The app's account.
        user_id: The app's own id of the user.
        character: The version of the character, as ``ID@3``; other versions count as the same.
    """
    async with database.read() as session:
        last = await _last_with(session, account_id, user_id, character.partition("@")[0])
        if last is None:
            return None
        shown = await _newest(session, last.id, MessageRow.summary.is_not(None), count=1)
        newest = shown[0].summary if shown else None
        messages = await _newest(session, last.id, MessageRow.is_deleted.is_(False))
    before = newest or last.carried or {}
    until = max(last.forgotten_until, newest["until"] if newest else 0)
    user_messages = [
        Utterance(message.sender, message.content, position=message.position)
        for message in reversed(messages)
        if message.position > until
    ]
    text = await threads.CHATS.run(
        digest, before.get("text", ""), user_messages, last.bot.name, CARRIED_TOKENS
    )
    sources = [last.id, *(last.carried or {}).get("sources", ())]
    return {"text": text, "from": last.id, "sources": sources} if text else None


async def are_sources_there(session: AsyncSession, carried: dict[str, Any]) -> bool:
    """Tell whether all conversations that something was carried from are there still; until the transaction ends they are."""
    found = await session.scalars(
        select(ConversationRow.id)
        .where(ConversationRow.id.in_(carried["sources"]))
        .with_for_update(read=True)
    )
    return len(found.all()) == len(set(carried["sources"]))


async def erase_carried(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    """Erase what later conversations carry of these ones, within the transaction that erases these."""
    source = aliased(ConversationRow)
    carrying = await session.execute(
        select(ConversationRow.id, ConversationRow.carried).where(
            ConversationRow.carried.is_not(None),
            exists().where(
                source.id.in_(conversation_ids),
                source.account_id == ConversationRow.account_id,
                source.user_id == ConversationRow.user_id,
            ),
        )
    )
    erased = set(conversation_ids)
    derived = [
        conversation_id
        for conversation_id, carried in carrying.all()
        if conversation_id not in erased and carried and not erased.isdisjoint(carried["sources"])
    ]
    if derived:
        await _forget(session, sorted(derived))


async def _forget(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    await session.execute(
        update(MessageRow)
        .where(MessageRow.conversation_id.in_(conversation_ids), MessageRow.summary.is_not(None))
        .values(summary=None)
        .execution_options(synchronize_session=False)
    )
    await session.execute(
        update(ConversationRow)
        .where(ConversationRow.id.in_(conversation_ids))
        .values(
            carried=None,
            written=None,
            message_count=ConversationRow.message_count + 1,
            change_count=ConversationRow.change_count + 1,
        )
        .execution_options(synchronize_session=False)
    )


async def _newest(
    session: AsyncSession,
    conversation_id: str,
    which: ColumnElement[bool],
    count: int = MOST_MESSAGES,
) -> Sequence[MessageRow]:
    found = await session.scalars(
        select(MessageRow)
        .where(MessageRow.conversation_id == conversation_id, which)
        .order_by(MessageRow.position.desc())
        .limit(count)
    )
    return found.all()


async def _last_with(
    session: AsyncSession, account_id: str, user_id: str, character_id: str
) -> ConversationRow | None:
    """Return the user's newest conversation with any version of the character."""
    found: ConversationRow | None = await session.scalar(
        select(ConversationRow)
        .where(
            ConversationRow.account_id == account_id,
            ConversationRow.user_id == user_id,
            ConversationRow.character.startswith(f"{character_id}@", autoescape=True),
        )
        .order_by(ConversationRow.created_at.desc(), ConversationRow.id.desc())
        .limit(1)
    )
    return found
