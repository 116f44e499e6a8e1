"""Records ratings, all that wait in one transaction: a thousand a second fit through one core.

    rate ─▶ waiting ─┐                     ┌─▶ recorded
    rate ─▶ waiting ─┼─▶ one transaction ──┼─▶ AlreadyRated, ConversationNotFound, TooManyRatings
    rate ─▶ waiting ─┘                     └─▶ …

While one group is being written the next one gathers; a rating that comes alone is written at once, alone. Each is
answered when its transaction has committed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
from guanaco.errors import AlreadyRated, ConversationNotFound, GuanacoError, TooManyRatings
from guanaco.feedback import FeedbackRequest
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import ConversationService
from guanaco_server.chat.records import RateableConversation
from guanaco_server.clock import Clock
from guanaco_server.database.database import Database
from guanaco_server.feedback import queries

RATINGS_PER_MINUTE = 30  # of one user: nobody reads faster
GROUP = 200  # ratings in one transaction: some 20 ms
MINUTE = timedelta(minutes=1)


@dataclass
class Waiting:
    account: Account
    conversation_id: str
    request: FeedbackRequest
    done: asyncio.Future[str]
    id: str = field(default_factory=lambda: f"fb_{uuid.uuid4().hex}")


class RatingRecorder:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        conversations: ConversationService,
        ratings_per_minute: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._conversations = conversations
        self._limit = ratings_per_minute
        self._waiting: list[Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def record(self, account: Account, conversation_id: str, request: FeedbackRequest) -> str:
        """The rating's id, once it is committed. A caller that goes away does not take it back."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(account, conversation_id, request, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="ratings")
        return await done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
                await self._write(group)
        finally:
            self._writing = None

    async def _write(self, group: Sequence[Waiting]) -> None:
        """What one rating does to the transaction it alone hears of: the others are written without it."""
        try:
            async with self._database.write() as session:
                outcomes = await self._insert(session, group)
        except Exception as error:  # noqa: BLE001 - it is the caller's to handle
            if len(group) > 1:
                for one in group:
                    await self._write([one])
                return
            outcomes = [error]
        for one, outcome in zip(group, outcomes, strict=True):
            if one.done.done():
                continue
            if outcome is None:
                one.done.set_result(one.id)
            else:
                one.done.set_exception(outcome)

    async def _insert(
        self, session: AsyncSession, group: Sequence[Waiting]
    ) -> list[Exception | None]:
        """What is to be raised for each of them, if anything."""
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
        return [
            refusal or (None if one.id in inserted else AlreadyRated())
            for one, refusal in zip(group, refused, strict=True)
        ]

    def _refusal(
        self,
        one: Waiting,
        conversation: RateableConversation | None,
        times: dict[str, list[datetime]],
        now: datetime,
    ) -> GuanacoError | None:
        if conversation is None or not _is_own(one.account, conversation):
            return ConversationNotFound(one.conversation_id)
        given = times.setdefault(conversation.user_id, [])
        if len(given) >= self._limit:
            free_at = given[-self._limit] + MINUTE
            return TooManyRatings(self._limit, (free_at - now).total_seconds())
        given.append(now)
        return None


def _is_own(account: Account, conversation: RateableConversation) -> bool:
    return account.role is Role.ADMIN or account.id == conversation.account_id


def _row(one: Waiting, conversation: RateableConversation, now: datetime) -> dict[str, Any]:
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
    }
