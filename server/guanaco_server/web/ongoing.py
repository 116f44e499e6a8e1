"""Carries the chat page's replies to their end, whoever goes on reading them.

    POST ──▶ a task reads the gateway's events ──▶ OngoingReply ◀── the page that asked
                                                                ◀── the same page, loaded again

A page that is closed or loses its connection leaves the task alone: the reply is recorded, and is there when the page
comes back. A process that stops cancels its tasks; such a turn is left unanswered, and can be answered anew.

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
from guanaco.errors import GuanacoError, Unavailable
from guanaco_server.chat.gateway.replies import ReplyEvents
from guanaco_server.chat.gateway.stopping import Stop
from guanaco_server.database.database import Database
from guanaco_server.duels.battling import BattleEvents, SidePieces
from guanaco_server.http.errors import internal_fault
from guanaco_server.web import queries

HEARTBEAT_S = 10.0
LOOK_S = 1.0  # for orders to stop that came to another process

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """A whole reply, as a page shows it; with ``asks_for_rating`` the competition would like to have a rating now."""

    message_id: str
    text: str
    asks_for_rating: bool = False


NOTHING = Said("", "")  # how a reply ends that was stopped before it began
FollowedEvents = AsyncGenerator[str | Said | None, None]


class OngoingReply:
    """One reply: the text until now, and how it ended. ``turn`` is the page's name of it; without one it is never stopped."""

    def __init__(self, turn: str, stop: Stop) -> None:
        self.turn = turn
        self._stop = stop
        self._task: asyncio.Task[None] | None = None
        self._text = ""
        self._end: Said | GuanacoError | None = None
        self._changed = asyncio.Event()

    @property
    def text(self) -> str:
        """Return what is written until now."""
        return self._text

    def add(self, text: str) -> None:
        self._text += text
        self._tell()

    def end(self, how: Said | GuanacoError) -> None:
        if self._end is None:
            self._end = how
            self._tell()

    def write(self, task: asyncio.Task[None]) -> None:
        """Note who writes it."""
        self._task = task

    def stop(self) -> None:
        """Keep what is written, or write nothing at all."""
        if self._text:
            self._stop.give()
        elif self._task is not None:
            self.end(NOTHING)
            self._task.cancel()

    async def follow(self) -> FollowedEvents:
        """Yield the text from its beginning as it grows, None while nothing comes for a while, then what was Said.

        Raises:
            GuanacoError: The reply failed.
        """
        told = 0
        while True:
            changed = self._changed
            if len(self._text) > told:
                new, told = self._text[told:], len(self._text)
                yield new
            elif isinstance(self._end, GuanacoError):
                raise self._end
            elif self._end is not None:
                yield self._end
                return
            else:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield None

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class OngoingBattle:
    """Two replies that are being written side by side; who follows them reads them once, from the beginning."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[SidePieces | GuanacoError | None] = asyncio.Queue()

    def add(self, what: SidePieces | GuanacoError | None) -> None:
        """Tell pieces, the error that ended it, or None at its end."""
        self._told.put_nowait(what)

    async def follow(self) -> AsyncGenerator[SidePieces | None, None]:
        """Yield pieces of both sides, and None while nothing comes for a while.

        Raises:
            GuanacoError: It failed.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    told = await self._told.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(told, GuanacoError):
                raise told
            if told is None:
                return
            yield told


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
        reply = self._replies[conversation_id] = OngoingReply(turn, stop)
        task = self._start(self._read(conversation_id, reply, events))
        reply.write(task)
        if self._looking is None or self._looking.done():
            self._looking = self._start(self._look())
        return reply

    def begin_battle(self, events: BattleEvents) -> OngoingBattle:
        """Carry a battle to its end in a task of its own."""
        battle = OngoingBattle()
        self._start(self._carry(battle, events))
        return battle

    async def _carry(self, battle: OngoingBattle, events: BattleEvents) -> None:
        end: GuanacoError | None = Unavailable("The server stops.", hint="Try again in a minute.")
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, SidePieces):
                        battle.add(event)
            end = None
        except GuanacoError as error:
            end = error
        except Exception as error:  # noqa: BLE001 - whoever follows is told
            end = internal_fault("a battle on the chat page", error)
        finally:
            battle.add(end)

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
                    reply.end(Said(id, event.content, event.ask_for_feedback))
                else:
                    reply.add("".join(event))

    @asynccontextmanager
    async def _kept(self, conversation_id: str, reply: OngoingReply) -> AsyncIterator[None]:
        try:
            yield
        except GuanacoError as error:
            reply.end(error)
        except Exception as error:  # noqa: BLE001 - whoever follows the reply has to be told
            reply.end(internal_fault("a reply on the chat page", error))
        finally:
            reply.end(Unavailable("The reply was cut off.", hint="Ask for an answer again."))
            if self._replies.get(conversation_id) is reply:
                del self._replies[conversation_id]
