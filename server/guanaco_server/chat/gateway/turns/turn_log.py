"""Writes turns: who holds a conversation's turn, and the two messages of a turn that has ended.

    claim     the turn's lease is ours, or the conversation is busy           need not reach the disk: it runs out
    renew     the leases of turns that take long, all at once, so that a dead process's run out soon
    finish    the user's message and the reply, the lease given back          durable before anybody hears of it
    abandon   the user's message, unanswered, the lease given back
    continue  what is added to the last reply, the lease given back       durable before anybody hears of it

A lease that a crash of the database has forgotten still is ours if nobody has taken or changed the conversation since.

Each is written in groups (database/group_commit.py; on SQLite with all urgent writes, database/database.py). A finish whose commit was not heard of is tried again for
``patience_s``, and counts once: its message's id says whether it is there, of a continued reply its text. A turn that cannot be stored at all fails
alone: those that shared its group are written one by one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from sqlalchemy.exc import DBAPIError

from guanaco.errors import ConversationBusy, DatabaseUnavailable
from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.database.postgresql.direct import lost_connection
from guanaco_server.idempotency.keeping import AnswerToKeep
from guanaco_server.prompts.layouts import Summary
from guanaco_server.runtime.clock import Clock

RETRY_S = 0.25
LEASE_S = 20.0  # how long a turn is held by a process that has died

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """``message_count`` tells whether a history that was read before still is the whole one."""

    conversation_id: str
    token: str
    message_count: int


@dataclass(frozen=True, slots=True)
class NewMessage:
    """``lore`` are the places in the bot's lorebook of the entries that are told with a user's message, ``recalled`` the positions of earlier messages that are shown again, ``summary`` what is shown of the conversation before."""

    id: str
    content: str
    at: datetime
    lore: tuple[int, ...] = field(default=(), kw_only=True)
    recalled: tuple[int, ...] = field(default=(), kw_only=True)
    summary: Summary | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class NewReply(NewMessage):
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    total_ms: float
    reward_score: float | None = None
    original: str | None = None  # the model's own words, where others are or may be shown


@dataclass(frozen=True, slots=True)
class Continuation:
    """A reply that went on: ``content`` is the whole, ``appended`` what is new, as are its tokens and its time."""

    id: str
    content: str
    appended: str
    finish_reason: str
    completion_tokens: int
    total_ms: float
    reward_score: float | None = None


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """``asked`` is the user's message unless it is stored already, ``reply`` is missing where there was none; ``superseded`` are messages that the reply replaces, ``continued`` is the reply that went on instead.

    ``answer`` is that of a request with an Idempotency-Key. The turn is stored with it, and only while the request is still ours.
    """

    lease: Lease
    asked: NewMessage | None
    reply: NewReply | None
    superseded: tuple[str, ...] = ()
    continued: Continuation | None = None
    answer: AnswerToKeep | None = None

    @property
    def message_count(self) -> int:
        """The conversation's, with this turn. A reply that went on counts as a change."""
        added = (self.asked, self.reply, self.continued)
        return self.lease.message_count + sum(one is not None for one in added)

    @property
    def proof(self) -> StoredMessage | None:
        """Return the message that is stored once this is; None where nothing is written."""
        if self.continued is not None:
            return StoredMessage(self.continued.id, self.continued.content)
        message = self.reply or self.asked
        return StoredMessage(message.id) if message is not None else None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message; with a ``content``, one that says just that."""

    id: str
    content: str | None = None


class TurnStatements(Protocol):
    """The three writes in the terms of one database. Where it ``groups_writes`` by itself, none need wait for those before."""

    groups_writes: ClassVar[bool]

    async def claim(
        self, conversation_ids: Sequence[str], token: str, now: datetime, until: datetime
    ) -> dict[str, int]:
        """Message counts of the conversations whose lease is now ours."""
        ...

    async def renew(self, leases: Sequence[Lease], until: datetime) -> None:
        """Renew those leases that are still ours."""
        ...

    async def end(self, turns: Sequence[EndedTurn]) -> set[str]:
        """Write what ended, in one transaction; the conversations whose lease still was ours."""
        ...

    async def known(self, messages: Sequence[StoredMessage]) -> set[str]:
        """Return the ids of those of these messages that are stored."""
        ...


class TurnLog:
    """``longest_s`` is how long a turn may take at most: what is held longer is not renewed."""

    def __init__(
        self, statements: TurnStatements, clock: Clock, patience_s: float, longest_s: float
    ) -> None:
        self._statements = statements
        self._clock = clock
        self._patience_s = patience_s
        self._longest_s = longest_s
        self._held: dict[Lease, float] = {}
        self._renewer: asyncio.Task[None] | None = None
        turn = nullcontext if statements.groups_writes else None
        self._claims: GroupCommit[str, Lease | None] = GroupCommit(
            self._claim, self._give_back, turn=turn
        )
        self._orphans: set[asyncio.Task[list[bool | Exception]]] = set()
        self._ends: GroupCommit[EndedTurn, bool] = GroupCommit(self._end, turn=turn)

    async def claim(self, conversation_id: str) -> Lease | None:
        """Return None if the turn is another's, or there is no such conversation. DatabaseUnavailable. What is claimed must be ended."""
        try:
            lease = await self._claims.submit(conversation_id)
        except lost_connection(DBAPIError) as error:
            raise DatabaseUnavailable from error
        if lease is not None:
            self._held[lease] = time.monotonic()
            if self._renewer is None:
                self._renewer = asyncio.create_task(self._renew())
        return lease

    async def end(self, turn: EndedTurn) -> None:
        """Durable when this returns; ConversationBusy when the lease had run out and another took it. DatabaseUnavailable after ``patience_s``."""
        try:
            is_ours = await self._ends.submit(turn)
        except Exception as error:
            if _is_transient(error):
                raise DatabaseUnavailable from error
            raise
        finally:
            self._held.pop(turn.lease, None)
        if not is_ours:
            raise ConversationBusy

    async def close(self) -> None:
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.gather(self._renewer, return_exceptions=True)
        await self._claims.drain()
        while self._orphans:
            await asyncio.wait(self._orphans)
        await self._ends.drain()

    def _give_back(self, lease: Lease | None) -> None:
        """Whoever asked for it has left."""
        if lease is not None:
            task = asyncio.create_task(self._end([EndedTurn(lease, None, None)]))
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    async def _claim(self, conversation_ids: Sequence[str]) -> list[Lease | Exception | None]:
        """A conversation may be asked for twice in one batch: the first has it."""
        token = secrets.token_hex(16)
        now = self._clock.now()
        counts = await self._statements.claim(
            sorted(set(conversation_ids)), token, now, now + timedelta(seconds=LEASE_S)
        )
        leases: list[Lease | Exception | None] = []
        for conversation_id in conversation_ids:
            count = counts.pop(conversation_id, None)
            leases.append(None if count is None else Lease(conversation_id, token, count))
        return leases

    async def _renew(self) -> None:
        """Renew the leases that are half over."""
        while True:
            await asyncio.sleep(LEASE_S / 4)
            now = time.monotonic()
            old = [
                lease
                for lease, since in self._held.items()
                if LEASE_S / 2 < now - since < self._longest_s
            ]
            if not old:
                continue
            try:
                await self._statements.renew(old, self._clock.now() + timedelta(seconds=LEASE_S))
            except lost_connection(DBAPIError) as error:
                logger.warning("leases of turns cannot be renewed, trying again: %s", error)

    async def _end(self, turns: Sequence[EndedTurn]) -> list[bool | Exception]:
        return await self._end_before(time.monotonic() + self._patience_s, turns)

    async def _end_before(
        self, deadline: float, turns: Sequence[EndedTurn]
    ) -> list[bool | Exception]:
        is_repeated = False
        while True:
            try:
                ours = await self._statements.end(turns)
                written = await self._written(turns, ours) if is_repeated else set[str]()
            except Exception as error:  # noqa: BLE001 - each turn gets the one that it has earned
                if not _is_transient(error) and len(turns) > 1:  # one of them cannot be stored
                    return [(await self._end_before(deadline, [turn]))[0] for turn in turns]
                if not _is_transient(error) or time.monotonic() > deadline:
                    return [error] * len(turns)
                logger.warning("turns cannot be stored, trying again: %s", error)
                is_repeated = True
                await asyncio.sleep(RETRY_S)
            else:
                return [turn.lease.conversation_id in ours | written for turn in turns]

    async def _written(self, turns: Sequence[EndedTurn], ours: set[str]) -> set[str]:
        """Return the conversations whose turn an earlier try has stored, among those whose lease is no longer ours."""
        by_message = {
            proof: turn.lease.conversation_id
            for turn in turns
            if turn.lease.conversation_id not in ours and (proof := turn.proof) is not None
        }
        if not by_message:
            return set()
        known = await self._statements.known(list(by_message))
        return {
            conversation_id for proof, conversation_id in by_message.items() if proof.id in known
        }


def _is_transient(error: Exception) -> bool:
    """Return whether the connection or another transaction caused it, and not what was sent."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or _is_passing(error.orig)
    return _is_passing(error)


def _is_passing(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.OperationalError):
        return "locked" in str(cause)
    return isinstance(cause, lost_connection())
