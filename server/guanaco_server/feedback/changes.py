"""Changes and withdraws ratings within a day. What was there before is kept as an audit trail.

    rated ──change──▶ rated        the row has the new rating and the old time; its copy is made again
      │                            the old one is a row of feedback_changes
      └────withdraw──▶ not rated   the row is gone; feedback_changes has it, for its first thumb stays the user's first vote

The listeners, the leaderboard among them, hear of it in the same transaction. A rating keeps the time at which it was
given, so a change neither makes it a user's latest nor moves it into another minute or competition window.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import ConversationNotFound, FeedbackNotFound, NotRated, RatingSettled
from guanaco.feedback import FeedbackRequest, Rating, RatingChange
from guanaco_server.accounts.audit import AuditLog
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries
from guanaco_server.feedback.recording import is_own
from guanaco_server.feedback.tables import FeedbackRow, RatingChangeRow
from guanaco_server.runtime.clock import Clock

CHANGEABLE = timedelta(days=1)
MAX_CHANGES = 20  # of one conversation's ratings: a person changes their mind once or twice
READ_CHANGES = "read changes of a rating"


@dataclass(frozen=True)
class ChangedRating:
    """A rating that no longer is what it was."""

    feedback_id: str
    user_key: str
    submission_id: str
    competition: str
    at: datetime


OnChanged = Callable[[AsyncSession, ChangedRating], Awaitable[None]]


class RatingChanger:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        conversations: ConversationService,
        audit: AuditLog,
        on_changed: OnChanged,
    ) -> None:
        """``on_changed`` is called, within the transaction, for each rating that is changed or withdrawn."""
        self._database = database
        self._clock = clock
        self._conversations = conversations
        self._audit = audit
        self._on_changed = on_changed

    async def read(self, account: Account, conversation_id: str) -> Rating:
        async with self._database.read() as session:
            await self._require_own(session, account, conversation_id)
            row = await queries.of_conversation(session, conversation_id)
        if row is None:
            raise NotRated
        return _read(row)

    async def change(
        self, account: Account, conversation_id: str, request: FeedbackRequest
    ) -> Rating:
        async def change(session: AsyncSession) -> Rating:
            row = await self._changeable(session, account, conversation_id)
            before = FeedbackRequest(
                thumbs_up=row.thumbs_up, text=row.text, may_be_quoted=row.may_be_quoted
            )
            if before == request:
                return _read(row)
            now = self._clock.now()
            await self._note(session, account, row, now, request.thumbs_up)
            row.thumbs_up, row.text, row.changed_at = request.thumbs_up, request.text, now
            row.quotable_as_of = now if request.may_be_quoted else None
            await session.flush()
            await queries.copy_again(session, [conversation_id])
            return _read(row)

        return await self._database.write_unit(change)

    async def withdraw(self, account: Account, conversation_id: str) -> None:
        async def withdraw(session: AsyncSession) -> None:
            row = await self._changeable(session, account, conversation_id, is_withdrawn=True)
            await self._note(session, account, row, self._clock.now(), None)
            await queries.delete_ratings(session, [row.id])

        await self._database.write_unit(withdraw)

    async def changes(self, account: Account, feedback_id: str) -> list[RatingChange]:
        async def read(session: AsyncSession) -> list[RatingChange]:
            rows = await queries.changes_of(session, feedback_id)
            if not rows and await queries.by_id(session, feedback_id) is None:
                raise FeedbackNotFound(feedback_id)
            await self._audit.note(session, account, READ_CHANGES, feedback_id)
            return [
                RatingChange(
                    feedback_id=row.feedback_id,
                    thumbs_up=row.thumbs_up,
                    text=row.text,
                    given_at=row.given_at,
                    changed_at=row.changed_at,
                    now_up=row.now_up,
                )
                for row in rows
            ]

        return await self._database.write_unit(read)

    async def _changeable(
        self,
        session: AsyncSession,
        account: Account,
        conversation_id: str,
        *,
        is_withdrawn: bool = False,
    ) -> FeedbackRow:
        """Lock the conversation first, as whoever rates or counts does, then its rating."""
        competition = await self._require_own(session, account, conversation_id)
        if is_withdrawn:
            await self._conversations.measure_again(session, [conversation_id])
        row = await queries.locked_of_conversation(session, conversation_id)
        if row is None:
            raise NotRated
        await self._conversations.require_unfrozen(session, competition)
        if self._clock.now() >= row.created_at + CHANGEABLE:
            raise RatingSettled(
                "This rating is older than a day, so it can neither be changed nor withdrawn."
            )
        if await queries.count_changes(session, conversation_id) >= MAX_CHANGES:
            raise RatingSettled(f"This rating was changed {MAX_CHANGES} times already.")
        return row

    async def _require_own(
        self, session: AsyncSession, account: Account, conversation_id: str
    ) -> str:
        """Hold the conversation, and return its competition; ConversationNotFound for another backend's."""
        found = await self._conversations.rateable(session, {conversation_id})
        if conversation_id not in found or not is_own(account, found[conversation_id]):
            raise ConversationNotFound(conversation_id)
        return found[conversation_id].competition

    async def _note(
        self,
        session: AsyncSession,
        account: Account,
        row: FeedbackRow,
        now: datetime,
        now_up: bool | None,
    ) -> None:
        session.add(
            RatingChangeRow(
                feedback_id=row.id,
                conversation_id=row.conversation_id,
                thumbs_up=row.thumbs_up,
                text=row.text,
                now_up=now_up,
                given_at=row.created_at,
                changed_at=now,
                changed_by=account.id,
                user_id=row.user_id,
                account_id=row.account_id,
                submission_id=row.submission_id,
                competition=row.competition,
            )
        )
        changed = ChangedRating(
            feedback_id=row.id,
            user_key=user_key(row.account_id, row.user_id),
            submission_id=row.submission_id,
            competition=row.competition,
            at=row.created_at,
        )
        await self._on_changed(session, changed)


def _read(row: FeedbackRow) -> Rating:
    return Rating(
        feedback_id=row.id,
        thumbs_up=row.thumbs_up,
        text=row.text,
        at=row.created_at,
        changed_at=row.changed_at,
        may_be_quoted=row.may_be_quoted,
        changeable_until=row.created_at + CHANGEABLE,
    )
