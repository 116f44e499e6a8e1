"""Carries out what an app does with its own conversations beside talking: it lists them, notes things, changes and judges messages.

Whatever changes messages counts it in the conversation's ``message_count``. So every process reads the history again
before the next turn, and the leaderboard measures the conversation again. While a reply is being written nothing is changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import (
    ConversationChanges,
    ConversationPage,
    ConversationQuery,
    ConversationSummary,
    Message,
    MessageChanges,
    Sender,
)
from guanaco.competitions import CHOSEN
from guanaco.errors import ConversationBusy, ConversationNotFound, InvalidInput, MessageNotFound
from guanaco.memory import Author
from guanaco_server.accounts.service import Account
from guanaco_server.chat import queries
from guanaco_server.chat.conversations.reading import read_message, read_messages
from guanaco_server.chat.memory.carrying import erase_carried
from guanaco_server.chat.tables import ConversationRow, MessageRow, ReplyChoiceRow
from guanaco_server.database.database import Database
from guanaco_server.database.paging import TimeCursor
from guanaco_server.runtime.clock import Clock

CURSORS = TimeCursor("conv")

OnChanged = Callable[[AsyncSession, Sequence[str]], Awaitable[None]]


class ConversationEditor:
    """An account, admins included, sees and changes its own conversations only."""

    def __init__(
        self, database: Database, clock: Clock, *, on_changed: OnChanged, on_deleted: OnChanged
    ) -> None:
        """Both are called within the transaction.

        ``on_changed`` gets the ids of conversations whose messages are changed or judged, ``on_deleted`` those of messages that are
        deleted for good.
        """
        self._database = database
        self._clock = clock
        self._on_changed = on_changed
        self._on_deleted = on_deleted

    async def page(self, account: Account, query: ConversationQuery) -> ConversationPage:
        """Return conversations, newest first."""
        async with self._database.read() as session:
            rows = await queries.page(
                session,
                account.id,
                query.user_id,
                query.external_id,
                CURSORS.decode(query.cursor),
                query.limit,
            )
            last = await queries.last_messages(session, [row.id for row in rows])
        is_full = len(rows) == query.limit
        return ConversationPage(
            items=[_summary(row, last.get(row.id)) for row in rows],
            next_cursor=CURSORS.encode(rows[-1].created_at, rows[-1].id) if is_full else None,
        )

    async def change(
        self, account: Account, conversation_id: str, changes: ConversationChanges
    ) -> ConversationSummary:
        """Replace the app's notes."""

        async def change(session: AsyncSession) -> ConversationSummary:
            row = await _own(session, account, conversation_id)
            row.app_metadata = changes.metadata
            last = await queries.last_messages(session, [row.id])
            return _summary(row, last.get(row.id))

        return await self._database.write_unit(change)

    async def edit(
        self, account: Account, conversation_id: str, message_id: str, changes: MessageChanges
    ) -> Message:
        """Replace a message's text. The model's own words of an edited reply are kept for measurement."""

        async def edit(session: AsyncSession) -> Message:
            async with self._changing(session, account, conversation_id):
                rows = await queries.messages_of(session, [conversation_id])
                row = _present(rows, message_id)
                _drop_summaries(rows, row.position)
                await erase_carried(session, [conversation_id])
                if row.sender == Sender.BOT and not row.is_imported and row.original is None:
                    row.original = row.content
                row.content, row.edited_at = changes.content, self._clock.now()
            return read_message(row)

        return await self._database.write_unit(edit)

    async def delete_message(
        self, account: Account, conversation_id: str, message_id: str, *, with_following: bool
    ) -> None:
        """Delete a message for good, a reply together with those that it replaced; on request all that follows too."""

        async def delete(session: AsyncSession) -> None:
            async with self._changing(session, account, conversation_id):
                rows = await queries.messages_of(session, [conversation_id])
                row = _present(rows, message_id)
                first, last = _group(rows, rows.index(row))
                _drop_summaries(rows, rows[first].position)
                await erase_carried(session, [conversation_id])
                gone = [one.id for one in (rows[first:] if with_following else rows[first:last])]
                await self._on_deleted(session, gone)
                await queries.delete_messages(session, gone)

        await self._database.write_unit(delete)

    async def swipes(self, account: Account, conversation_id: str) -> list[Message]:
        """Return all replies to the last message, oldest first; the one that is not deleted is chosen."""
        async with self._database.read() as session:
            await _own(session, account, conversation_id)
            rows = await queries.messages_of(session, [conversation_id])
        return read_messages(_last_replies(rows))

    async def choose(self, account: Account, conversation_id: str, message_id: str) -> Message:
        """Go on with one of the replies to the last message. The choice is kept as a judgement."""

        async def choose(session: AsyncSession) -> Message:
            async with self._changing(session, account, conversation_id):
                rows = _last_replies(await queries.messages_of(session, [conversation_id]))
                chosen = next((row for row in rows if row.id == message_id), None)
                if chosen is None:
                    raise MessageNotFound(message_id)
                for row in rows:
                    row.is_deleted = row is not chosen
                rejected = [row.id for row in rows if row is not chosen]
                if rejected:
                    session.add(
                        ReplyChoiceRow(
                            conversation_id=conversation_id,
                            chosen=message_id,
                            rejected=rejected,
                            at=self._clock.now(),
                        )
                    )
            return read_message(chosen)

        return await self._database.write_unit(choose)

    async def replace_reply(
        self, session: AsyncSession, conversation_id: str, message_id: str, content: str | None
    ) -> bool:
        """Have the last reply read so, or with None in the model's own words again, within the caller's transaction.

        False where the conversation has gone on or a reply is being written. What is measured is the model's own words. The message
        says nothing of it, so that nobody learns which words are its own.
        """
        if not await queries.change_messages(session, conversation_id, self._clock.now()):
            return False
        rows = _last_replies(await queries.messages_of(session, [conversation_id]))
        row = next((row for row in rows if row.id == message_id and not row.is_deleted), None)
        if row is None:
            return False
        own = row.content if row.original is None else row.original
        row.original = own
        row.content = own if content is None else content
        await session.flush()
        await self._on_changed(session, [conversation_id])
        return True

    async def message_ids(self, session: AsyncSession, conversation_id: str) -> set[str]:
        """Return the ids of all messages, also of those that were replaced, within the caller's transaction."""
        return {row.id for row in await queries.messages_of(session, [conversation_id])}

    async def rate_message(
        self, account: Account, conversation_id: str, message_id: str, thumbs_up: bool | None
    ) -> Message:
        """Note what the user thought of a reply; None takes it back. It does not count for the leaderboard."""

        async def rate(session: AsyncSession) -> Message:
            await _own(session, account, conversation_id)
            row = _present(await queries.messages_of(session, [conversation_id]), message_id)
            if row.sender != Sender.BOT or row.is_imported:
                raise InvalidInput("Only a reply of the model can be rated.")
            row.thumbs_up = thumbs_up
            await self._on_changed(session, [conversation_id])
            return read_message(row)

        return await self._database.write_unit(rate)

    @asynccontextmanager
    async def _changing(
        self, session: AsyncSession, account: Account, conversation_id: str
    ) -> AsyncIterator[None]:
        """Keep everybody else from writing to the conversation until the caller's transaction ends; ConversationBusy while a reply is being written."""
        await _own(session, account, conversation_id)
        if not await queries.change_messages(session, conversation_id, self._clock.now()):
            raise ConversationBusy
        yield
        await session.flush()
        await self._on_changed(session, [conversation_id])


async def _own(session: AsyncSession, account: Account, conversation_id: str) -> ConversationRow:
    row = await queries.by_id(session, conversation_id)
    if row is None or row.account_id != account.id:
        raise ConversationNotFound(conversation_id)
    return row


def _present(rows: Sequence[MessageRow], message_id: str) -> MessageRow:
    """Return the message, if it was neither deleted nor replaced; MessageNotFound."""
    for row in rows:
        if row.id == message_id and not row.is_deleted:
            return row
    raise MessageNotFound(message_id)


def _drop_summaries(rows: Sequence[MessageRow], position: int) -> None:
    """Remove the summaries of what is changed at this position; they are written again. The app's own text stays."""
    for row in rows:
        summary = row.summary
        if summary is not None and summary["until"] >= position and summary["by"] != Author.APP:
            row.summary = None


def _group(rows: Sequence[MessageRow], place: int) -> tuple[int, int]:
    """Return the places of a message together with the replies that it replaced, or that replaced it."""
    first, last = place, place + 1
    if rows[place].sender == Sender.BOT:
        while first > 0 and rows[first - 1].sender == Sender.BOT and rows[first - 1].is_deleted:
            first -= 1
        while last < len(rows) and rows[last].sender == Sender.BOT and rows[last].is_deleted:
            last += 1
    return first, last


def _last_replies(rows: Sequence[MessageRow]) -> Sequence[MessageRow]:
    """Return the replies of the model after the last message that is none."""
    place = len(rows)
    while place > 0 and rows[place - 1].sender == Sender.BOT and not rows[place - 1].is_imported:
        place -= 1
    return rows[place:]


def _summary(row: ConversationRow, last: MessageRow | None) -> ConversationSummary:
    return ConversationSummary(
        conversation_id=row.id,
        submission_id=row.submission_id,
        user_id=row.user_id,
        user_name=row.user_name,
        bot_name=row.bot.name,
        character=row.character,
        created_at=row.created_at,
        is_chosen=row.competition == CHOSEN,
        external_id=row.external_id,
        metadata=row.app_metadata or {},
        last_message=read_message(last) if last else None,
    )
