"""Carries the chat page's replies to their end, whoever goes on reading them.

    POST ──▶ a task reads the gateway's events ──▶ OngoingReply ◀── the page that asked
                                                                ◀── the same page, loaded again

A page that is closed or loses its connection leaves the task alone: the reply is recorded, and is there when the page
comes back. A process that stops cancels its tasks; such a turn is left unanswered, and can be answered again.

A user stops a reply in the process that writes it, or leaves an order in the database, for which that process looks every
second while it writes. What was written until then is the reply; where nothing was, the message stays unanswered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from guanaco.chat import Reply
from guanaco.duels import Battle, Side
from guanaco.errors import GuanacoError, Unavailable
from guanaco_server.chat.gateway.replies import ReplyEvents
from guanaco_server.chat.gateway.stopping import Stop
from guanaco_server.database.database import Database
from guanaco_server.duels.battling import BattleEvents, BattleStop, SidePieces
from guanaco_server.http.errors import as_guanaco_error
from guanaco_server.web import queries

HEARTBEAT_S = 10.0
LOOK_S = 1.0  # for orders to stop that came to another process

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """Text that was added to a reply, in a battle to that of one side."""

    text: str
    side: Side | None = None


@dataclass(frozen=True)
class FinishedReply:
    """A whole reply, as a page shows it; with ``asks_for_rating`` the competition would like to have a rating now.

    A battle has no text: the page reads both replies, to choose from, from the record.
    """

    message_id: str
    text: str
    asks_for_rating: bool = False
    is_battle: bool = False


NO_REPLY = FinishedReply("", "")  # how a reply ends that was stopped before it began
FollowedEvents = AsyncGenerator[Piece | FinishedReply | None, None]


class OngoingReply:
    """A reply, or the two of a battle: the text until now, and how it ended.

    ``turn`` is the page's name of it; without one it is never stopped.
    """

    def __init__(self, turn: str, stop: Stop | BattleStop) -> None:
        self.turn = turn
        self._stop = stop
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._texts: dict[Side | None, str] = {}
        self._end: FinishedReply | GuanacoError | None = None
        self._changed = asyncio.Event()

    @property
    def text(self) -> str:
        """Return what is written until now."""
        return "".join(self._texts.values())

    def add(self, text: str, side: Side | None = None) -> None:
        self._texts[side] = self._texts.get(side, "") + text
        self._tell()

    def end(self, how: FinishedReply | GuanacoError) -> None:
        if self._end is None:
            is_unwritten = self._is_stopped and isinstance(how, GuanacoError)
            self._end = NO_REPLY if is_unwritten else how
            self._tell()

    def write(self, task: asyncio.Task[None]) -> None:
        """Note who writes it."""
        self._task = task

    def stop(self) -> None:
        """Keep what is written, or write nothing at all."""
        self._is_stopped = True
        if self._texts:
            self._stop.give()
        elif self._task is not None:
            self.end(NO_REPLY)
            self._task.cancel()

    async def follow(self) -> FollowedEvents:
        """Yield the text from its beginning as it grows, None while nothing comes for a while, then the finished reply.

        Raises:
            GuanacoError: The reply failed.
        """
        sent_chars: dict[Side | None, int] = {}
        while True:
            changed = self._changed
            new = {side: text[sent_chars.get(side, 0) :] for side, text in self._texts.items()}
            sent_chars = {side: len(text) for side, text in self._texts.items()}
            for side, text in new.items():
                if text:
                    yield Piece(text, side)
            if self._changed is not changed:
                continue
            if isinstance(self._end, GuanacoError):
                raise self._end
            if self._end is not None:
                yield self._end
                return
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
            except TimeoutError:
                yield None

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class OngoingReplies:
    """The replies that this process is writing for the chat page, by conversation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replies: dict[str, OngoingReply] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def begin(
        self, conversation_id: str, events: ReplyEvents, stop: Stop, turn: str
    ) -> OngoingReply:
        """Read the events in a task of their own. A conversation has one turn at a time, so nothing is replaced."""
        reply = OngoingReply(turn, stop)
        return self._begin(conversation_id, reply, self._read(conversation_id, reply, events))

    def begin_battle(
        self, conversation_id: str, events: BattleEvents, stop: BattleStop, turn: str
    ) -> OngoingReply:
        """Read the events of a battle, likewise."""
        reply = OngoingReply(turn, stop)
        work = self._read_battle(conversation_id, reply, events)
        return self._begin(conversation_id, reply, work)

    def _begin(
        self, conversation_id: str, reply: OngoingReply, work: Coroutine[Any, Any, None]
    ) -> OngoingReply:
        self._replies[conversation_id] = reply
        reply.write(self._start(work))
        if self._looking is None or self._looking.done():
            self._looking = self._start(self._look())
        return reply

    def stop(self, conversation_id: str, turn: str) -> bool:
        """Stop the reply of this turn. False where this process does not write it."""
        reply = self._replies.get(conversation_id)
        if reply is None or not turn or reply.turn != turn:
            return False
        reply.stop()
        return True

    def of(self, conversation_id: str) -> OngoingReply | None:
        return self._replies.get(conversation_id)

    async def close(self) -> None:
        """End what is being written, before the services under it close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look(self) -> None:
        """Follow the orders to stop that came to other processes, as long as there is something to stop."""
        await asyncio.sleep(LOOK_S)
        while self._replies:
            try:
                async with self._database.read() as session:
                    orders = await queries.stop_orders(session, list(self._replies))
            except (SQLAlchemyError, OSError) as error:
                logger.warning("orders to stop a reply cannot be read, trying again: %s", error)
                orders = {}
            for conversation_id, turn in orders.items():
                self.stop(conversation_id, turn)
            await asyncio.sleep(LOOK_S)

    async def _read(self, conversation_id: str, reply: OngoingReply, events: ReplyEvents) -> None:
        async with self._kept(conversation_id, reply), aclosing(events):
            async for event in events:
                if isinstance(event, Reply):
                    id = event.message_id or ""
                    reply.end(FinishedReply(id, event.content, event.ask_for_feedback))
                else:
                    reply.add("".join(event))

    async def _read_battle(
        self, conversation_id: str, reply: OngoingReply, events: BattleEvents
    ) -> None:
        async with self._kept(conversation_id, reply), aclosing(events):
            async for event in events:
                if isinstance(event, SidePieces):
                    reply.add("".join(event.texts), event.side)
                else:
                    reply.end(_whole_battle(event))

    @asynccontextmanager
    async def _kept(self, conversation_id: str, reply: OngoingReply) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whoever follows the reply has to be told
            reply.end(as_guanaco_error("a reply on the chat page", error))
        finally:
            reply.end(Unavailable("The reply was cut off.", hint="Ask for an answer again."))
            if self._replies.get(conversation_id) is reply:
                del self._replies[conversation_id]


def _whole_battle(battle: Battle) -> FinishedReply:
    """Return how a battle ends: with two replies to choose from, or with an ordinary one."""
    own = battle.a if battle.continues_from == "a" else battle.b
    is_battle = battle.battle_id is not None
    text = own.content if own is not None and not is_battle else ""
    return FinishedReply(battle.message_id, text, battle.ask_for_feedback, is_battle)
