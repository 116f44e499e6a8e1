"""Every query on conversations and messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CursorResult,
    Row,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.tables import (
    AskRow,
    ConversationRow,
    ErasedConversationRow,
    GatewayPlacesRow,
    MessageRow,
    ReplyChoiceRow,
)
from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.types import JsonColumn


async def by_id(session: AsyncSession, conversation_id: str) -> ConversationRow | None:
    return await session.get(ConversationRow, conversation_id)


async def locked(session: AsyncSession, conversation_id: str) -> ConversationRow | None:
    """Lock the conversation: nobody rates, counts or continues it until this transaction ends."""
    return await session.get(ConversationRow, conversation_id, with_for_update=True)


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


async def user_names(session: AsyncSession, conversation_ids: Sequence[str]) -> dict[str, str]:
    rows = await session.execute(
        select(ConversationRow.id, ConversationRow.user_name).where(
            ConversationRow.id.in_(conversation_ids)
        )
    )
    return {conversation_id: user_name for conversation_id, user_name in rows}


async def first_messages(session: AsyncSession, conversation_ids: Sequence[str]) -> dict[str, str]:
    first_message = type_coerce(ConversationRow.bot, JsonColumn)["first_message"].as_string()
    rows = await session.execute(
        select(ConversationRow.id, first_message).where(ConversationRow.id.in_(conversation_ids))
    )
    return {conversation_id: content or "" for conversation_id, content in rows}


async def known_messages(session: AsyncSession, message_ids: Sequence[str]) -> dict[str, str]:
    """Return the texts of those of these messages that are stored."""
    rows = await session.execute(
        select(MessageRow.id, MessageRow.content).where(MessageRow.id.in_(message_ids))
    )
    return {message_id: content for message_id, content in rows}


async def open_turns(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Turns that were claimed and have not ended, by submission."""
    rows = await session.execute(
        select(ConversationRow.submission_id, func.count())
        .where(ConversationRow.turn_until > now)
        .group_by(ConversationRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def seen_submissions(
    session: AsyncSession, account_id: str, user_id: str, competition: str
) -> Sequence[str]:
    """Return what a user of the account has had in a competition, least recently had first."""
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


async def by_external_id(
    session: AsyncSession, account_id: str, external_id: str
) -> ConversationRow | None:
    return (
        await session.scalars(
            select(ConversationRow).where(
                ConversationRow.account_id == account_id,
                ConversationRow.external_id == external_id,
            )
        )
    ).one_or_none()


async def page(
    session: AsyncSession,
    account_id: str,
    user_id: str | None,
    external_id: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[ConversationRow]:
    """Return an account's conversations, newest first, that follow the time and the id ``before``."""
    row = ConversationRow
    statement = select(row).where(row.account_id == account_id)
    if user_id is not None:
        statement = statement.where(row.user_id == user_id)
    if external_id is not None:
        statement = statement.where(row.external_id == external_id)
    if before is not None:
        at, conversation_id = before
        statement = statement.where(
            or_(row.created_at < at, and_(row.created_at == at, row.id < conversation_id))
        )
    order = statement.order_by(row.created_at.desc(), row.id.desc()).limit(limit)
    return (await session.scalars(order)).all()


async def last_messages(
    session: AsyncSession, conversation_ids: Sequence[str]
) -> dict[str, MessageRow]:
    """Return each conversation's newest message that was neither deleted nor replaced."""
    newest = (
        select(MessageRow.conversation_id, func.max(MessageRow.position).label("position"))
        .where(MessageRow.conversation_id.in_(conversation_ids), MessageRow.is_deleted.is_(False))
        .group_by(MessageRow.conversation_id)
        .subquery()
    )
    rows = await session.scalars(
        select(MessageRow).join(
            newest,
            and_(
                MessageRow.conversation_id == newest.c.conversation_id,
                MessageRow.position == newest.c.position,
            ),
        )
    )
    return {row.conversation_id: row for row in rows}


async def change_messages(session: AsyncSession, conversation_id: str, now: datetime) -> bool:
    """Count a change of older messages, and keep turns out until the transaction ends; False while a reply is being written."""
    count = await session.scalar(
        update(ConversationRow)
        .where(
            ConversationRow.id == conversation_id,
            or_(ConversationRow.turn_token.is_(None), ConversationRow.turn_until < now),
        )
        .values(
            message_count=ConversationRow.message_count + 1,
            change_count=ConversationRow.change_count + 1,
            written=None,
            turn_token=None,
            turn_until=None,
        )
        .returning(ConversationRow.message_count)
        .execution_options(synchronize_session=False)
    )
    return count is not None


async def keep_summary(
    session: AsyncSession, conversation_id: str, change_count: int, written: dict[str, Any]
) -> None:
    """Keep a summary until it is shown, unless what it was made of was changed meanwhile."""
    await session.execute(
        update(ConversationRow)
        .where(ConversationRow.id == conversation_id, ConversationRow.change_count == change_count)
        .values(written=written)
        .execution_options(synchronize_session=False)
    )


async def delete_messages(session: AsyncSession, message_ids: Sequence[str]) -> None:
    await session.execute(
        delete(MessageRow)
        .where(MessageRow.id.in_(message_ids))
        .execution_options(synchronize_session=False)
    )


async def lock_of_user(
    session: AsyncSession, user_id: str, account_id: str | None, until: datetime | None
) -> dict[str, str]:
    """Conversation and account, of those that began until then; nobody rates or continues them until this transaction ends."""
    statement = select(ConversationRow.id, ConversationRow.account_id).where(
        ConversationRow.user_id == user_id
    )
    if account_id is not None:
        statement = statement.where(ConversationRow.account_id == account_id)
    if until is not None:
        statement = statement.where(ConversationRow.created_at <= until)
    rows = await session.execute(statement.with_for_update())
    return {conversation_id: owner for conversation_id, owner in rows}


async def delete_conversations(session: AsyncSession, conversation_ids: Sequence[str]) -> int:
    """Delete conversations with all that belongs to them, and return how many messages went with them."""
    await session.execute(
        delete(ReplyChoiceRow)
        .where(ReplyChoiceRow.conversation_id.in_(conversation_ids))
        .execution_options(synchronize_session=False)
    )
    messages = await session.execute(
        delete(MessageRow)
        .where(MessageRow.conversation_id.in_(conversation_ids))
        .execution_options(synchronize_session=False)
    )
    await session.execute(
        delete(ConversationRow)
        .where(ConversationRow.id.in_(conversation_ids))
        .execution_options(synchronize_session=False)
    )
    assert isinstance(messages, CursorResult)
    return messages.rowcount


async def note_erased(
    session: AsyncSession, conversation_ids: Sequence[str], now: datetime, kept_since: datetime
) -> None:
    """And drop what was noted before."""
    await session.execute(
        delete(ErasedConversationRow).where(ErasedConversationRow.erased_at < kept_since)
    )
    await session.execute(
        insert(ErasedConversationRow),
        [{"conversation_id": erased, "erased_at": now} for erased in conversation_ids],
    )


async def erased_after(session: AsyncSession, number: int) -> Sequence[Row[int, str]]:
    rows = await session.execute(
        select(ErasedConversationRow.number, ErasedConversationRow.conversation_id)
        .where(ErasedConversationRow.number > number)
        .order_by(ErasedConversationRow.number)
    )
    return rows.all()


async def last_erased(session: AsyncSession) -> int:
    return await session.scalar(select(func.max(ErasedConversationRow.number))) or 0


async def places_of_others(
    session: AsyncSession, gateway: str, now: datetime
) -> Sequence[GatewayPlacesRow]:
    """Return what the other gateways hold, without those that have fallen silent."""
    statement = select(GatewayPlacesRow).where(
        GatewayPlacesRow.gateway != gateway, GatewayPlacesRow.held_until > now
    )
    return (await session.scalars(statement)).all()


async def has_older_gateway(session: AsyncSession, now: datetime) -> bool:
    """Return whether a gateway of the version before was asked for a reply lately: it knows a submission's model by the submission's name only."""
    found = select(GatewayPlacesRow.gateway).where(
        GatewayPlacesRow.submissions.is_(None), GatewayPlacesRow.held_until > now
    )
    return await session.scalar(found.limit(1)) is not None


async def hold_places(
    session: AsyncSession, gateway: str, rows: Sequence[GatewayPlacesRow], now: datetime
) -> None:
    """The places of a gateway are these from now on; what has lapsed is dropped."""
    await session.execute(
        delete(GatewayPlacesRow)
        .where(or_(GatewayPlacesRow.gateway == gateway, GatewayPlacesRow.held_until <= now))
        .execution_options(synchronize_session=False)
    )
    session.add_all(rows)


async def drop_places(session: AsyncSession, gateway: str) -> None:
    await session.execute(
        delete(GatewayPlacesRow)
        .where(GatewayPlacesRow.gateway == gateway)
        .execution_options(synchronize_session=False)
    )


async def keep_ask(session: AsyncSession, row: dict[str, Any]) -> bool | None:
    """Keep whether a conversation is asked, unless that was drawn before. Return what is kept; None where the user had another conversation with the submission."""
    bulk = BulkInsert(session, AskRow, [row])
    await session.execute(bulk.statement.on_conflict_do_nothing(), bulk.parameters)
    kept: bool | None = await session.scalar(
        select(AskRow.is_asked).where(AskRow.conversation_id == row["conversation_id"])
    )
    return kept
