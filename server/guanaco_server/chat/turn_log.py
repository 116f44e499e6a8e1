"""What the hot path writes: who has a conversation's turn, and the two messages of a turn that has ended.

    claim     the turn's lease is ours, or the conversation is busy           need not reach the disk: it runs out
    finish    the user's message and the reply, the lease given back          durable before anybody hears of it
    abandon   the user's message, unanswered, the lease given back

Each is written in groups (database/group_commit.py). A finish whose commit was not heard of is tried again for
``patience_s``, and counts once: its message's id says whether it is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import psycopg
from sqlalchemy.exc import DBAPIError

from guanaco.errors import ConversationBusy, DatabaseUnavailable
from guanaco_server.database.group_commit import GroupCommit

RETRY_S = 0.25
BROKEN = (psycopg.OperationalError, DBAPIError, OSError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """``message_count`` tells whether a history that was read before still is the whole one."""

    conversation_id: str
    token: str
    message_count: int


@dataclass(frozen=True, slots=True)
class NewMessage:
    id: str
    content: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewReply(NewMessage):
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """``asked`` is the user's message unless it is stored already, ``reply`` is missing where there was none; ``superseded`` are messages that the reply replaces."""

    lease: Lease
    asked: NewMessage | None
    reply: NewReply | None
    superseded: tuple[str, ...] = ()

    @property
    def message_count(self) -> int:
        """The conversation's, with this turn."""
        return self.lease.message_count + (self.asked is not None) + (self.reply is not None)


class TurnStatements(Protocol):
    """The three writes in the terms of one database."""

    async def claim(
        self, conversation_ids: Sequence[str], token: str, now: datetime, until: datetime
    ) -> dict[str, int]:
        """Message counts of the conversations whose lease is now ours."""
        ...

    async def end(self, turns: Sequence[EndedTurn]) -> set[str]:
        """Write what ended, in one transaction; the conversations whose lease still was ours."""
        ...

    async def known(self, message_ids: Sequence[str]) -> set[str]:
        """Which of these messages are stored."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Claim:
    conversation_id: str
    now: datetime
    until: datetime


class TurnLog:
    def __init__(self, statements: TurnStatements, patience_s: float) -> None:
        self._statements = statements
        self._patience_s = patience_s
        self._claims: GroupCommit[_Claim, Lease | None] = GroupCommit(self._claim, self._give_back)
        self._orphans: set[asyncio.Task[bool | Exception]] = set()
        self._ends: GroupCommit[EndedTurn, bool] = GroupCommit(self._end)

    async def claim(self, conversation_id: str, now: datetime, until: datetime) -> Lease | None:
        """None when the turn is another's, or there is no such conversation. DatabaseUnavailable."""
        try:
            return await self._claims.submit(_Claim(conversation_id, now, until))
        except BROKEN as error:
            raise DatabaseUnavailable from error

    async def end(self, turn: EndedTurn) -> None:
        """Durable when this returns; ConversationBusy when the lease had run out and another took it. DatabaseUnavailable after ``patience_s``."""
        try:
            is_ours = await self._ends.submit(turn)
        except BROKEN as error:
            raise DatabaseUnavailable from error
        if not is_ours:
            raise ConversationBusy

    async def close(self) -> None:
        await self._claims.drain()
        while self._orphans:
            await asyncio.wait(self._orphans)
        await self._ends.drain()
        await self._statements.close()

    def _give_back(self, lease: Lease | None) -> None:
        """Whoever asked for it has left."""
        if lease is not None:
            task = asyncio.create_task(self._end_alone(EndedTurn(lease, None, None)))
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    async def _claim(self, claims: Sequence[_Claim]) -> list[Lease | Exception | None]:
        """A conversation may be asked for twice in one batch: the first has it."""
        token = uuid.uuid4().hex
        now, until = claims[-1].now, claims[-1].until
        wanted = dict.fromkeys(claim.conversation_id for claim in claims)
        counts = await self._statements.claim(sorted(wanted), token, now, until)
        leases: list[Lease | Exception | None] = []
        for claim in claims:
            count = counts.pop(claim.conversation_id, None)
            leases.append(None if count is None else Lease(claim.conversation_id, token, count))
        return leases

    async def _end(self, turns: Sequence[EndedTurn]) -> list[bool | Exception]:
        deadline = time.monotonic() + self._patience_s
        is_repeated = False
        while True:
            try:
                ours = await self._statements.end(turns)
                written = await self._written(turns, ours) if is_repeated else set[str]()
            except (psycopg.DatabaseError, DBAPIError, OSError) as error:
                if not _may_pass(error) and len(turns) > 1:  # one of them cannot be stored
                    return [await self._end_alone(turn) for turn in turns]
                if not _may_pass(error) or time.monotonic() > deadline:
                    raise
                logger.warning("turns cannot be stored, trying again: %s", error)
                is_repeated = True
                await asyncio.sleep(RETRY_S)
            else:
                return [turn.lease.conversation_id in ours | written for turn in turns]

    async def _end_alone(self, turn: EndedTurn) -> bool | Exception:
        try:
            return (await self._end([turn]))[0]
        except (psycopg.DatabaseError, DBAPIError, OSError) as error:
            return error

    async def _written(self, turns: Sequence[EndedTurn], ours: set[str]) -> set[str]:
        """Of the turns that are no longer ours, those that an earlier try has stored."""
        by_message = {
            message.id: turn.lease.conversation_id
            for turn in turns
            if turn.lease.conversation_id not in ours
            and (message := turn.reply or turn.asked) is not None
        }
        if not by_message:
            return set()
        return {by_message[found] for found in await self._statements.known(list(by_message))}


def _may_pass(error: Exception) -> bool:
    """Whether the connection is to blame, and not what was sent."""
    if isinstance(error, DBAPIError):
        return (
            error.connection_invalidated
            or isinstance(error.orig, psycopg.OperationalError | OSError)
            or "locked" in str(error.orig)
        )
    return True
