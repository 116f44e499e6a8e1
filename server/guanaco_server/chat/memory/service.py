"""Reads, corrects and erases what conversations remember. An admin's doing so with another's is in the audit log.

Whatever changes a memory counts as a change of the messages: every gateway process reads the history again before the next turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Sender
from guanaco.errors import ConversationBusy, InvalidInput
from guanaco.memory import (
    Author,
    CarriedMemory,
    ConversationMemory,
    MemoryCorrection,
    RecalledMessages,
    ShownSummary,
)
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.chat import queries
from guanaco_server.chat.conversations.service import require_own
from guanaco_server.chat.memory.carrying import erase_carried
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.lore.activation import tokens
from guanaco_server.prompts.history.summaries import summary_budget
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.clock import Clock

READ, CORRECT, ERASE = "read memory", "correct memory", "erase memory"


class MemoryService:
    def __init__(
        self, database: Database, clock: Clock, audit: AuditLog, routing: RoutingService
    ) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit
        self._routing = routing

    async def read(self, account: Account, conversation_id: str) -> ConversationMemory:
        """Return what is remembered, the oldest first."""
        async with self._database.read() as session:
            row = await require_own(session, account, conversation_id)
            messages = await queries.messages_of(session, [conversation_id])
        if row.account_id != account.id:
            await self._database.write_unit(
                lambda session: self._audit.note(session, account, READ, conversation_id)
            )
        return _memory(row, messages)

    async def correct(
        self, account: Account, conversation_id: str, correction: MemoryCorrection
    ) -> ConversationMemory:
        """Replace all summaries by the app's text, where the newest one stands.

        Raises:
            ConversationBusy: A reply is being written.
            InvalidInput: The text is longer than a summary may be, or nothing was said yet before which it could stand.
        """

        async def correct(session: AsyncSession) -> ConversationMemory:
            async with self._changing(session, account, conversation_id, CORRECT) as row:
                self._require_room(row, correction.summary)
                messages = await queries.messages_of(session, [conversation_id])
                shown = [message for message in messages if message.summary is not None]
                asked = [
                    one for one in messages if one.sender == Sender.USER and not one.is_deleted
                ]
                if not asked:
                    raise InvalidInput("Nothing was said yet, so there is nothing to remember.")
                at = shown[-1] if shown else asked[-1]
                until = shown[-1].summary["until"] if shown and shown[-1].summary else 0
                for message in shown:
                    message.summary = None
                at.summary = {
                    "text": correction.summary,
                    "until": until,
                    "by": Author.APP.value,
                }
                await session.flush()
                return _memory(row, messages)

        return await self._database.write_unit(correct)

    def _require_room(self, row: ConversationRow, text: str) -> None:
        """Raise InvalidInput for a text that the prompts of the conversation's submission would not show."""
        serving = self._routing.serving(row.submission_id)
        if serving is None:
            return
        params = self._routing.memory_rule(row.competition).applied_to(serving.params)
        sizes = (row.bot.memory, row.bot.prompt, row.bot.post_history)
        most = summary_budget(params.max_input_tokens, sizes, params.summary_tokens)
        if not most:
            raise InvalidInput("This conversation has no summaries: `summary_tokens` is 0.")
        if (size := tokens(text)) > most:
            raise InvalidInput(
                f"The text takes about {size:,} tokens, and a summary of this conversation at most {most:,}."
            )

    async def erase(self, account: Account, conversation_id: str) -> None:
        """Forget what was said so far: no summary has it, and it is not recalled. The messages stay.

        Raises:
            ConversationBusy: A reply is being written.
        """

        async def erase(session: AsyncSession) -> None:
            async with self._changing(session, account, conversation_id, ERASE) as row:
                messages = await queries.messages_of(session, [conversation_id])
                for message in messages:
                    message.summary = message.recalled = None
                row.carried = None
                await erase_carried(session, [conversation_id])
                row.forgotten_until = messages[-1].position if messages else 0

        await self._database.write_unit(erase)

    @asynccontextmanager
    async def _changing(
        self, session: AsyncSession, account: Account, conversation_id: str, action: str
    ) -> AsyncIterator[ConversationRow]:
        row = await require_own(session, account, conversation_id)
        if not await queries.change_messages(session, conversation_id, self._clock.now()):
            raise ConversationBusy
        yield row
        if row.account_id != account.id:
            await self._audit.note(session, account, action, conversation_id)


def _memory(row: ConversationRow, messages: Sequence[MessageRow]) -> ConversationMemory:
    carried = row.carried
    return ConversationMemory(
        conversation_id=row.id,
        summaries=[
            ShownSummary(
                message=message.position,
                until=message.summary["until"],
                text=message.summary["text"],
                written_by=Author.read(message.summary["by"]),
            )
            for message in messages
            if message.summary is not None
        ],
        recalled=[
            RecalledMessages(message=message.position, recalled=tuple(message.recalled))
            for message in messages
            if message.recalled
        ],
        carried=CarriedMemory(conversation_id=carried["from"], text=carried["text"])
        if carried is not None
        else None,
        forgotten_until=row.forgotten_until,
    )
