"""Carries what was remembered of a user and a character from their last conversation into a new one.

    last conversation: its newest summary + what was said since  →  a digest  →  the new one's ``carried``

It is written by the rule when the new conversation is opened, shown with its first message, and goes on in its summaries. When a
conversation is erased, so is what others carry of it, with their summaries, which are written anew of their own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat import queries
from guanaco_server.chat.memory.digest import digest
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.prompts.layouts import Utterance

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
        messages = await queries.messages_of(session, [last.id])
    shown = [message for message in messages if message.summary is not None]
    newest = shown[-1].summary if shown else None
    before = newest or last.carried or {}
    until = max(last.forgotten_until, newest["until"] if newest else 0)
    said = [
        Utterance(message.sender, message.content, position=message.position)
        for message in messages
        if message.position > until and not message.is_deleted
    ]
    text = await asyncio.to_thread(
        digest, before.get("text", ""), said[-MOST_MESSAGES:], last.bot.name, CARRIED_TOKENS
    )
    return {"text": text, "from": last.id} if text else None


async def erase_carried(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    """Within the caller's transaction, which erases these conversations: erase what later ones carry of them."""
    users = await session.execute(
        select(ConversationRow.account_id, ConversationRow.user_id)
        .where(ConversationRow.id.in_(conversation_ids))
        .distinct()
    )
    for account_id, user_id in users.all():
        carrying = await session.execute(
            select(ConversationRow.id, ConversationRow.carried).where(
                ConversationRow.account_id == account_id,
                ConversationRow.user_id == user_id,
                ConversationRow.carried.is_not(None),
            )
        )
        sources = {found: carried["from"] for found, carried in carrying.all() if carried}
        if derived := _derived(sources, set(conversation_ids)):
            await _forget(session, derived)


def _derived(sources: dict[str, str], erased: set[str]) -> list[str]:
    """Return the conversations that carry something of the erased ones, through any number of others."""
    gone, size = set(erased), -1
    while len(gone) > size:
        size = len(gone)
        gone |= {conversation for conversation, source in sources.items() if source in gone}
    return sorted(gone - erased)


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
        .values(carried=None, message_count=ConversationRow.message_count + 1)
        .execution_options(synchronize_session=False)
    )


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
        .order_by(ConversationRow.created_at.desc())
        .limit(1)
    )
    return found
