"""Ratings: given once by the conversation's own backend, read by the submission's developer under pseudonyms."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import AlreadyRated, FeedbackNotFound, InvalidInput
from guanaco.feedback import Feedback, FeedbackPage, FeedbackRecorded, FeedbackRequest
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import ConversationService, require_own
from guanaco_server.clock import Clock
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries
from guanaco_server.feedback.pseudonyms import Pseudonyms
from guanaco_server.feedback.tables import FeedbackRow
from guanaco_server.observability.metrics import Metrics
from guanaco_server.submissions.service import SubmissionService

STREAM_PAGE = 200  # ratings with their conversations, in memory at once


@dataclass(frozen=True)
class Votes:
    """One vote a user."""

    up: int
    down: int


class FeedbackService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        conversations: ConversationService,
        pseudonyms: Pseudonyms,
        metrics: Metrics | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._conversations = conversations
        self._pseudonyms = pseudonyms
        self._metrics = metrics or Metrics()

    async def rate(
        self, account: Account, conversation_id: str, request: FeedbackRequest
    ) -> FeedbackRecorded:
        """AlreadyRated the second time, also when two race."""
        try:
            async with self._database.write() as session:
                conversation = await require_own(session, account, conversation_id)
                if await queries.is_rated(session, conversation_id):
                    raise AlreadyRated
                row = FeedbackRow(
                    id=f"fb_{uuid.uuid4().hex}",
                    conversation_id=conversation_id,
                    submission_id=conversation.submission_id,
                    user_id=conversation.user_id,
                    competition=conversation.competition,
                    bot_name=conversation.bot.name,
                    thumbs_up=request.thumbs_up,
                    text=request.text,
                    created_at=self._clock.now(),
                )
                session.add(row)
        except IntegrityError:
            raise AlreadyRated from None
        self._metrics.note_vote(request.thumbs_up)
        return FeedbackRecorded(feedback_id=row.id)

    async def page(
        self, account: Account, submission_id: str, cursor: str | None, limit: int
    ) -> FeedbackPage:
        """Oldest first, so that the last cursor given, kept, later gives only what is new; None when there is nothing after it."""
        await self._submissions.require_visible(account, submission_id)
        position = _decode_cursor(cursor) if cursor else None
        items, last = await self._load(submission_id, position, limit)
        return FeedbackPage(items=items, next_cursor=_encode_cursor(last) if last else None)

    async def find(self, account: Account, submission_id: str, feedback_id: str) -> Feedback:
        """FeedbackNotFound also for another submission's rating."""
        await self._submissions.require_visible(account, submission_id)
        async with self._database.read() as session:
            row = await queries.by_id(session, feedback_id)
            if row is None or row.submission_id != submission_id:
                raise FeedbackNotFound(feedback_id)
            [item] = await self._read(session, [row])
        return item

    async def stream(self, account: Account, submission_id: str) -> AsyncIterator[Feedback]:
        """Everything there is, oldest first, page by page."""
        await self._submissions.require_visible(account, submission_id)
        return self._stream(submission_id)

    async def counts(self) -> dict[str, int]:
        """Ratings by submission."""
        async with self._database.read() as session:
            return await queries.counts(session)

    async def votes(self, session: AsyncSession) -> dict[str, Votes]:
        """Within the caller's transaction: the votes by submission."""
        rows = await queries.votes(session)
        return {submission_id: Votes(up, down) for submission_id, up, down in rows}

    async def rated_conversations(self, session: AsyncSession) -> dict[str, list[str]]:
        """Within the caller's transaction: the rated conversations by submission."""
        found: dict[str, list[str]] = {}
        for submission_id, conversation_id in await queries.rated_conversations(session):
            found.setdefault(submission_id, []).append(conversation_id)
        return found

    async def _stream(self, submission_id: str) -> AsyncIterator[Feedback]:
        position: tuple[datetime, str] | None = None
        while True:
            items, last = await self._load(submission_id, position, STREAM_PAGE)
            for item in items:
                yield item
            if last is None or len(items) < STREAM_PAGE:
                return
            position = last

    async def _load(
        self, submission_id: str, position: tuple[datetime, str] | None, limit: int
    ) -> tuple[list[Feedback], tuple[datetime, str] | None]:
        async with self._database.read() as session:
            rows = await queries.after(session, submission_id, position, limit)
            items = await self._read(session, rows)
        return items, (rows[-1].created_at, rows[-1].id) if rows else None

    async def _read(self, session: AsyncSession, rows: Sequence[FeedbackRow]) -> list[Feedback]:
        messages = await self._conversations.messages(
            session, [row.conversation_id for row in rows]
        )
        return [
            Feedback(
                id=row.id,
                submission_id=row.submission_id,
                conversation_id=row.conversation_id,
                user=self._pseudonyms.of(row.user_id),
                bot_name=row.bot_name,
                thumbs_up=row.thumbs_up,
                text=row.text,
                at=row.created_at,
                messages=messages.get(row.conversation_id, []),
            )
            for row in rows
        ]


def _encode_cursor(position: tuple[datetime, str]) -> str:
    at, feedback_id = position
    return base64.urlsafe_b64encode(f"{at.isoformat()} {feedback_id}".encode()).decode()


def _decode_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        at, _, feedback_id = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        moment = datetime.fromisoformat(at)
    except (ValueError, binascii.Error):
        moment = datetime.min  # noqa: DTZ901 - naive, and refused below
    if moment.utcoffset() != timedelta(0) or not feedback_id.isprintable():
        raise InvalidInput(
            "The cursor is not one that this server gave.",
            hint="Leave it out to begin at the first rating.",
        )
    return moment, feedback_id
