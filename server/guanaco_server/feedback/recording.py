"""Records all waiting ratings in one transaction: a thousand a second on one core.

    rate ─▶ waiting ─┐                     ┌─▶ recorded
    rate ─▶ waiting ─┼─▶ one transaction ──┼─▶ AlreadyRated, NothingToRate, ConversationNotFound, TooManyRatings
    rate ─▶ waiting ─┘                     └─▶ …

While one group is being written the next one gathers. A single rating is written at once. Each caller is answered
when its transaction has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import (
    AlreadyRated,
    ConversationNotFound,
    GuanacoError,
    NothingToRate,
    TooManyRatings,
)
from guanaco.feedback import FeedbackRecorded, FeedbackRequest
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.records import RateableConversation
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.database.database import Database
from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.feedback import queries
from guanaco_server.idempotency import keeping
from guanaco_server.idempotency.keeping import AnswerToKeep, answer_to
from guanaco_server.partitions.ids import new_rating_id
from guanaco_server.runtime.clock import Clock

MINUTE = timedelta(minutes=1)
RATINGS_PER_MINUTE = 30  # by one user; a person reads and writes more slowly


@dataclass(frozen=True)
class PendingRating:
    account: Account
    conversation_id: str
    request: FeedbackRequest
    id: str
    answer: AnswerToKeep | None = None


class RatingRecorder:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        conversations: ConversationService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._conversations = conversations
        self._ratings: GroupCommit[PendingRating, str] = GroupCommit(self._write)

    async def record(
        self, account: Account, conversation_id: str, request: FeedbackRequest
    ) -> FeedbackRecorded:
        """Record a rating, and return once it is committed."""
        recorded = FeedbackRecorded(feedback_id=new_rating_id(conversation_id))
        rating = PendingRating(
            account, conversation_id, request, recorded.feedback_id, answer_to(recorded)
        )
        await self._ratings.submit(rating)
        return recorded

    async def _write(self, group: Sequence[PendingRating]) -> list[str | Exception]:
        """Write a group. If it fails, write each rating alone, so that an error reaches only the rating that causes it."""

        async def insert(session: AsyncSession) -> list[Exception | None]:
            return await self._insert(session, group)

        try:
            refused = await self._database.write_unit(insert)
        except Exception as error:  # noqa: BLE001 - passed on to the caller
            if len(group) == 1:
                return [error]
            return [(await self._write([one]))[0] for one in group]
        return [refusal or one.id for one, refusal in zip(group, refused, strict=True)]

    async def _insert(
        self, session: AsyncSession, group: Sequence[PendingRating]
    ) -> list[Exception | None]:
        """Insert the ratings, and return the error for each that is refused."""
        there = await self._conversations.rateable(session, {one.conversation_id for one in group})
        now = self._clock.now()  # after the competitions are held: see CompetitionService.hold_open
        users = {one.user_id for one in there.values()}
        times = await queries.latest_times(session, users, now - MINUTE)
        refused = [self._refusal(one, there.get(one.conversation_id), times, now) for one in group]
        rows = [
            _row(one, there[one.conversation_id], now)
            for one, refusal in zip(group, refused, strict=True)
            if refusal is None
        ]
        inserted = await queries.insert(session, rows) if rows else set()
        for one in group:
            if one.answer is not None and one.id in inserted:
                await keeping.store(session, one.answer)
        return [
            refusal or (None if one.id in inserted else AlreadyRated())
            for one, refusal in zip(group, refused, strict=True)
        ]

    def _refusal(
        self,
        one: PendingRating,
        conversation: RateableConversation | None,
        times: dict[str, list[datetime]],
        now: datetime,
    ) -> GuanacoError | None:
        if conversation is None or not is_own(one.account, conversation):
            return ConversationNotFound(one.conversation_id)
        if not conversation.has_reply:
            return NothingToRate()
        given = times.setdefault(conversation.user_key, [])
        if len(given) >= RATINGS_PER_MINUTE:
            free_at = given[-RATINGS_PER_MINUTE] + MINUTE
            return TooManyRatings(RATINGS_PER_MINUTE, (free_at - now).total_seconds())
        given.append(now)
        return None


def is_own(account: Account, conversation: RateableConversation) -> bool:
    return account.role is Role.ADMIN or account.id == conversation.account_id


def _row(one: PendingRating, conversation: RateableConversation, now: datetime) -> dict[str, Any]:
    return {
        "id": one.id,
        "conversation_id": conversation.id,
        "submission_id": conversation.submission_id,
        "user_id": conversation.user_id,
        "account_id": conversation.account_id,
        "competition": conversation.competition,
        "bot_name": conversation.bot_name,
        "thumbs_up": one.request.thumbs_up,
        "text": one.request.text,
        "created_at": now,
        "is_counted": False,
        "revision": 0,
        "quotable_as_of": now if one.request.may_be_quoted else None,
    }
