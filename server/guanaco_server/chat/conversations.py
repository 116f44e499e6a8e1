"""Conversations: opened for a consenting user, with a submission that they keep; readable by their own backend."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.chat import Conversation, ConversationOpened, ConversationRequest, Message
from guanaco.errors import ConsentRequired, ConversationNotFound
from guanaco_server.accounts.service import Account
from guanaco_server.chat import queries, records
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.clock import Clock
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.routing.service import RoutingService


class ConversationService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        routing: RoutingService,
        competitions: CompetitionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._routing = routing
        self._competitions = competitions

    async def open(self, account: Account, request: ConversationRequest) -> ConversationOpened:
        """Without consent nothing is stored."""
        if not request.consent:
            raise ConsentRequired
        competition = await self._competitions.require_running(request.competition)
        live = await self._routing.assign()
        row = ConversationRow(
            id=f"conv_{uuid.uuid4().hex}",
            account_id=account.id,
            submission_id=live.serving.id,
            user_id=request.user_id,
            user_name=request.user_name,
            competition=competition.id,
            bot=request.bot,
            created_at=self._clock.now(),
            message_count=0,
        )
        async with self._database.write() as session:
            session.add(row)
        return ConversationOpened(conversation_id=row.id, submission_id=row.submission_id)

    async def read(self, account: Account, conversation_id: str) -> Conversation:
        async with self._database.read() as session:
            row = await require_own(session, account, conversation_id)
            messages = await queries.messages_of(session, [conversation_id])
        return Conversation(
            conversation_id=row.id,
            submission_id=row.submission_id,
            bot=row.bot,
            user_name=row.user_name,
            created_at=row.created_at,
            messages=[_read_message(message) for message in messages],
        )

    async def messages(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> dict[str, list[Message]]:
        """Within the caller's transaction: the messages of each conversation."""
        found: defaultdict[str, list[Message]] = defaultdict(list)
        for row in await queries.messages_of(session, conversation_ids):
            found[row.conversation_id].append(_read_message(row))
        return found

    async def rateable(
        self, session: AsyncSession, conversation_ids: Collection[str]
    ) -> dict[str, records.RateableConversation]:
        """Within the caller's transaction: those that are there; none is erased, nor its competition frozen, before it ends."""
        found = await records.rateable(session, conversation_ids)
        await self._competitions.hold_open(session, {one.competition for one in found.values()})
        return found

    async def open_streams(self) -> dict[str, int]:
        """Replies that are being written now, by submission."""
        async with self._database.read() as session:
            return await queries.open_turns(session, self._clock.now())


async def require_own(
    session: AsyncSession, account: Account, conversation_id: str
) -> ConversationRow:
    """The conversation; ConversationNotFound for another backend's."""
    row = await queries.by_id(session, conversation_id)
    if row is None or (account.role is not Role.ADMIN and row.account_id != account.id):
        raise ConversationNotFound(conversation_id)
    return row


def _read_message(row: MessageRow) -> Message:
    return Message(
        id=row.id,
        sender=row.sender,
        content=row.content,
        at=row.created_at,
        is_deleted=row.is_deleted,
    )
