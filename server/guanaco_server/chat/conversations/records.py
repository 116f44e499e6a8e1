"""Reads conversations for the leaderboard: raw, in bulk, and each change once.

A conversation has changed when its ``message_count`` is not the ``measured_count`` that was last noted. Whoever adds
a message changes the count in the same transaction, so no change can be missed, whenever it commits. Nobody is kept from writing
meanwhile: what was read is noted as measured only if it still is all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Subquery,
    and_,
    exists,
    func,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from guanaco.chat import Sender
from guanaco_server.chat.tables import AskRow, ConversationRow, MessageRow
from guanaco_server.database.bulk import plain_rows
from guanaco_server.database.database import among
from guanaco_server.database.types import JsonColumn
from guanaco_server.routing.snapshot import DecisionRecord

LONG = 100  # messages
QUIET = timedelta(minutes=1)

MessageAsRead = Row[str, Sender, str, datetime, bool, float | None, float | None]


@dataclass(frozen=True)
class RecordedMessage:
    sender: Sender
    content: str
    at: datetime
    is_deleted: bool
    ttft_ms: float | None = None
    total_ms: float | None = None


@dataclass(frozen=True)
class RecordedConversation:
    id: str
    submission_id: str
    competition: str
    account_id: str
    user_id: str
    message_count: int
    measured_count: int

    @property
    def user_key(self) -> str:
        return user_key(self.account_id, self.user_id)


@dataclass(frozen=True)
class RateableConversation:
    """A conversation, as far as a rating needs to know it."""

    id: str
    account_id: str
    submission_id: str
    user_id: str
    competition: str
    bot_name: str
    has_reply: bool

    @property
    def user_key(self) -> str:
        return user_key(self.account_id, self.user_id)


@dataclass(frozen=True)
class DecidedConversation:
    """A conversation whose assignment was recorded."""

    id: str
    submission_id: str
    account_id: str
    user_id: str
    bot_name: str
    at: datetime
    decision: DecisionRecord

    @property
    def user_key(self) -> str:
        return user_key(self.account_id, self.user_id)

    @property
    def stratum(self) -> tuple[str, str, int]:
        """App, bot and day (UTC): what users differ by, as far as is known before the choice."""
        return self.account_id, self.bot_name, self.at.astimezone(UTC).toordinal()


async def decided(
    session: AsyncSession,
    competition: str,
    after: tuple[datetime, str] | None,
    before: datetime | None,
    limit: int,
) -> list[DecidedConversation]:
    """Return the first conversations with a recorded assignment after one that began at a time, in the order in which they began."""
    row = ConversationRow
    bot = type_coerce(row.bot, JsonColumn)
    statement = select(
        row.id,
        row.submission_id,
        row.account_id,
        row.user_id,
        bot["name"].as_string(),
        row.created_at,
        row.decision,
    ).where(row.competition == competition, row.decision.is_not(None))
    if after is not None:
        at, last = after
        statement = statement.where(row.created_at >= at, or_(row.created_at > at, row.id > last))
    if before is not None:
        statement = statement.where(row.created_at < before)
    rows = await session.execute(statement.order_by(row.created_at, row.id).limit(limit))
    return [DecidedConversation(*one) for one in rows]


async def rateable(session: AsyncSession, ids: Iterable[str]) -> dict[str, RateableConversation]:
    """Find those that are there; they stay until the transaction ends."""
    bot = type_coerce(ConversationRow.bot, JsonColumn)
    statement = (
        select(
            ConversationRow.id,
            ConversationRow.account_id,
            ConversationRow.submission_id,
            ConversationRow.user_id,
            ConversationRow.competition,
            bot["name"].as_string(),
            _has_reply(),
        )
        .where(among(session, ConversationRow.id, ids))
        .with_for_update(read=True, key_share=True)
    )
    found = [RateableConversation(*row) for row in await session.execute(statement)]
    return {conversation.id: conversation for conversation in found}


def _has_reply() -> ColumnElement[bool]:
    """Return whether the model has said something that is still there."""
    return exists().where(
        MessageRow.conversation_id == ConversationRow.id,
        MessageRow.sender == Sender.BOT,
        MessageRow.is_deleted.is_(False),
        MessageRow.is_imported.is_(False),
    )


async def within(session: AsyncSession, ids: tuple[str, str], limit: int) -> Sequence[str]:
    """Return conversations with an id from the first of these until before the second."""
    row = ConversationRow
    statement = select(row.id).where(row.id >= ids[0], row.id < ids[1]).limit(limit)
    return (await session.scalars(statement)).all()


async def begun_between(
    session: AsyncSession,
    competition: str,
    since: datetime,
    before: datetime,
    without: tuple[str, str],
    limit: int,
) -> dict[str, str]:
    """Return the submission of each of a competition's conversations that began in time, but for ids within ``without``; the oldest first."""
    row = ConversationRow
    rows = await session.execute(
        select(row.id, row.submission_id)
        .where(
            row.competition == competition,
            row.created_at >= since,
            row.created_at < before,
            or_(row.id < without[0], row.id >= without[1]),
        )
        .order_by(row.created_at)
        .limit(limit)
    )
    return {conversation_id: submission_id for conversation_id, submission_id in rows}


async def users_until(session: AsyncSession, until: datetime) -> Sequence[tuple[str, str]]:
    """Read account and id of all users who have begun a conversation until then."""
    statement = (
        select(ConversationRow.account_id, ConversationRow.user_id)
        .where(ConversationRow.created_at <= until)
        .distinct()
    )
    return [(account_id, user_id) for account_id, user_id in await session.execute(statement)]


def of_user(account_id: str, user_id: str, competition: str) -> Select[str]:
    """Select the ids of the conversations that a user of the account has in a competition."""
    row = ConversationRow
    found: Select[str] = select(row.id).where(
        row.account_id == account_id, row.user_id == user_id, row.competition == competition
    )
    return found


async def users_of(session: AsyncSession, conversations: Select[str]) -> dict[str, tuple[str, str]]:
    """Return the account and the user of each conversation that a statement selects the id of."""
    row = ConversationRow
    rows = await session.execute(
        select(row.id, row.account_id, row.user_id).where(row.id.in_(conversations))
    )
    return {one: (account, user) for one, account, user in rows}


def of_messages(message_ids: Sequence[str]) -> Select[str]:
    """Select the ids of the conversations that these messages are in."""
    return select(MessageRow.conversation_id).where(MessageRow.id.in_(message_ids))


async def answered_within(
    session: AsyncSession, message_ids: Iterable[str], time: timedelta
) -> dict[str, bool]:
    """Tell of each of these replies that is there whether it stands and the user has written after it within that time."""
    reply, later = aliased(MessageRow), aliased(MessageRow)
    follows = and_(
        later.conversation_id == reply.conversation_id,
        later.position > reply.position,
        later.sender == Sender.USER,
    )
    statement = (
        select(reply.id, reply.is_deleted, reply.created_at, func.min(later.created_at))
        .outerjoin(later, follows)
        .where(among(session, reply.id, message_ids))
        .group_by(reply.id, reply.is_deleted, reply.created_at)
    )
    return {
        message_id: not is_deleted and answered_at is not None and answered_at <= at + time
        for message_id, is_deleted, at, answered_at in await session.execute(statement)
    }


async def ask_measurement(session: AsyncSession, ids: Iterable[str]) -> None:
    """Have these conversations measured again, since something beside their messages has changed."""
    await session.execute(
        update(ConversationRow)
        .where(among(session, ConversationRow.id, ids))
        .values(measured_count=-1)
        .execution_options(synchronize_session=False)
    )


async def changed(session: AsyncSession, limit: int, now: datetime) -> Sequence[str]:
    """Return some conversations that have changed since they were measured.

    A long one is left until it has grown by a tenth, or nothing was said in it for QUIET: it is read whole each time.
    """
    row, newest = ConversationRow, MessageRow
    said_at = (
        select(newest.created_at)
        .where(newest.conversation_id == row.id, newest.position == row.message_count)
        .correlate(row)
        .scalar_subquery()
    )
    is_due = or_(
        row.measured_count < LONG,
        10 * (row.message_count - row.measured_count) >= row.measured_count,
        said_at.is_(None),  # an older message was changed
        said_at < now - QUIET,
    )
    statement = select(row.id).where(row.message_count != row.measured_count, is_due).limit(limit)
    return (await session.scalars(statement)).all()


async def recorded(session: AsyncSession, ids: Iterable[str]) -> list[RecordedConversation]:
    """Return those that exist."""
    statement = select(
        ConversationRow.id,
        ConversationRow.submission_id,
        ConversationRow.competition,
        ConversationRow.account_id,
        ConversationRow.user_id,
        ConversationRow.message_count,
        ConversationRow.measured_count,
    ).where(among(session, ConversationRow.id, ids))
    return [RecordedConversation(*row) for row in await session.execute(statement)]


async def messages(session: AsyncSession, ids: Iterable[str]) -> Sequence[MessageAsRead]:
    """Read all messages of conversations, for ``by_conversation``: deleted ones too, in their order; a reply in the model's own words.

    Imported ones are left out.
    """
    statement = (
        select(
            MessageRow.conversation_id,
            MessageRow.sender,
            func.coalesce(MessageRow.original, MessageRow.content),
            MessageRow.created_at,
            MessageRow.is_deleted,
            MessageRow.ttft_ms,
            MessageRow.total_ms,
        )
        .where(among(session, MessageRow.conversation_id, ids), MessageRow.is_imported.is_(False))
        .order_by(MessageRow.conversation_id, MessageRow.position)
    )
    return await plain_rows(session, statement)


def by_conversation(read: Iterable[MessageAsRead]) -> dict[str, list[RecordedMessage]]:
    """Sort messages by conversation, in a thread: it takes 60 ms for eight long conversations."""
    found: dict[str, list[RecordedMessage]] = {}
    for conversation_id, sender, content, at, is_deleted, ttft_ms, total_ms in read:
        message = RecordedMessage(sender, content, at, is_deleted, ttft_ms, total_ms)
        found.setdefault(conversation_id, []).append(message)
    return found


async def of_submission(session: AsyncSession, submission_id: str) -> Sequence[str]:
    statement = select(ConversationRow.id).where(ConversationRow.submission_id == submission_id)
    return (await session.scalars(statement)).all()


async def note_measured(
    session: AsyncSession, conversations: Iterable[RecordedConversation]
) -> None:
    """Note that conversations are counted as they were read; one that was written since, or is now, has changed again.

    Writers of these conversations wait from here to the end of the transaction.
    """
    read = {
        one.id: one.message_count
        for one in conversations
        if one.message_count != one.measured_count
    }
    if not read:
        return
    row = ConversationRow
    held = await session.execute(
        select(row.id, row.message_count)
        .where(among(session, row.id, read))
        .with_for_update(skip_locked=True, key_share=True)
    )
    unchanged = [one for one, count in held if count == read[one]]
    await session.execute(
        update(row)
        .where(among(session, row.id, unchanged))
        .values(measured_count=row.message_count)
        .execution_options(synchronize_session=False)
    )


async def mean_lengths(session: AsyncSession, groups: Subquery) -> dict[str, list[float]]:
    """Return each unit's mean number of messages a conversation, by variant; deleted messages do not count."""
    each = (
        select(groups.c.variant, groups.c.unit, func.count(MessageRow.id).label("length"))
        .select_from(groups)
        .outerjoin(
            MessageRow,
            and_(
                MessageRow.conversation_id == groups.c.conversation_id,
                MessageRow.is_deleted.is_(False),
                MessageRow.is_imported.is_(False),
            ),
        )
        .group_by(groups.c.variant, groups.c.unit, groups.c.conversation_id)
        .subquery()
    )
    mean = select(each.c.variant, func.avg(each.c.length)).group_by(each.c.variant, each.c.unit)
    return _by_variant(await session.execute(mean))


async def mean_reply_ms(session: AsyncSession, groups: Subquery) -> dict[str, list[float]]:
    """Return each unit's mean reply time, by variant."""
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


USER_KEY_CHARS = 32 + 1 + 128  # an account's id, a slash, the backend's id of the user


def user_key(account_id: str, user_id: str) -> str:
    """Return the name of one user of one backend. An account's id has no slash."""
    return f"{account_id}/{user_id}"


def user_id_of(key: str) -> str:
    return key.partition("/")[2]


async def begun(session: AsyncSession, conversation_ids: Collection[str]) -> dict[str, datetime]:
    """Return when each of these conversations began."""
    row = ConversationRow
    rows = await session.execute(
        select(row.id, row.created_at).where(among(session, row.id, conversation_ids))
    )
    return {conversation_id: at for conversation_id, at in rows}


@dataclass(frozen=True)
class RecordedAsk:
    """A conversation that could be asked for a rating, and what was known of it before the draw."""

    conversation_id: str
    submission_id: str
    account_id: str
    at: datetime
    until: datetime
    chance: float
    is_asked: bool
    signals: Mapping[str, Any]


async def asks(
    session: AsyncSession, competition: str, after: tuple[datetime, str] | None, limit: int
) -> list[RecordedAsk]:
    """Return the conversations of a competition that could be asked, after that time and id, in their order."""
    row = AskRow
    statement = select(
        row.conversation_id,
        row.submission_id,
        row.user_key,
        row.at,
        row.until,
        row.chance,
        row.is_asked,
        row.signals,
    ).where(row.competition == competition)
    if after is not None:
        at, conversation_id = after
        statement = statement.where(
            or_(row.at > at, and_(row.at == at, row.conversation_id > conversation_id))
        )
    rows = await session.execute(statement.order_by(row.at, row.conversation_id).limit(limit))
    return [
        RecordedAsk(conversation_id, submission_id, key.partition("/")[0], *rest)
        for conversation_id, submission_id, key, *rest in rows
    ]


async def count_asks(
    session: AsyncSession, competition: str, until: tuple[datetime, str] | None = None
) -> int:
    """Count the conversations of a competition that could be asked, all or up to that time and id."""
    row = AskRow
    statement = select(func.count()).where(row.competition == competition)
    if until is not None:
        at, conversation_id = until
        statement = statement.where(
            or_(row.at < at, and_(row.at == at, row.conversation_id <= conversation_id))
        )
    return await session.scalar(statement) or 0
