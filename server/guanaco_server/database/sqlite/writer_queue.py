"""Queues writers in order, for a database that has one writer at a time (SQLite).

SQLite itself lets those who wait look again now and then, so the one that comes at the right moment is first: a chat's
turn was seen to wait ten seconds while other requests came and wrote. Here they queue, and hold no connection meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from sqlalchemy.exc import OperationalError

MOST_IN_A_ROW = 4  # urgent writers, before one of the others


class _Turn(NamedTuple):
    task: asyncio.Task[object] | None
    comes: asyncio.Future[None]


class WriterQueue:
    """First come, first served; urgent ones before the others. Belongs to one event loop."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.is_taken = False
        self._holder: asyncio.Task[object] | None = None
        self._urgent: deque[_Turn] = deque()
        self._others: deque[_Turn] = deque()
        self._in_a_row = 0

    @asynccontextmanager
    async def turn(self, *, is_urgent: bool) -> AsyncIterator[None]:
        """Wait for this writer's turn and hold it. OperationalError, as SQLite's own, if it does not come in time."""
        if self.is_taken:
            await self._wait(self._urgent if is_urgent else self._others)
        else:
            self.is_taken, self._holder = True, asyncio.current_task()
        try:
            yield
        finally:
            self._wake_next()

    @property
    def is_held_here(self) -> bool:
        """Tell whether it is the current task's turn, also where that task has not heard of it yet."""
        return self._holder is not None and self._holder is asyncio.current_task()

    async def _wait(self, queue: deque[_Turn]) -> None:
        turn = _Turn(asyncio.current_task(), asyncio.get_running_loop().create_future())
        queue.append(turn)
        try:
            async with asyncio.timeout(self._patience_s):
                await turn.comes
        except BaseException as error:
            if turn.comes.done() and not turn.comes.cancelled():
                self._wake_next()  # it came in the very moment of leaving
            if isinstance(error, TimeoutError):
                busy = sqlite3.OperationalError("database is locked")
                raise OperationalError("BEGIN IMMEDIATE", None, busy) from None
            raise

    def _wake_next(self) -> None:
        while (turn := self._next()) is not None:
            if not turn.comes.done():  # else its writer has left
                turn.comes.set_result(None)
                self._holder = turn.task
                return
        self.is_taken, self._holder = False, None

    def _next(self) -> _Turn | None:
        is_others_turn = self._in_a_row >= MOST_IN_A_ROW and self._others
        if self._urgent and not is_others_turn:
            self._in_a_row += 1
            return self._urgent.popleft()
        self._in_a_row = 0
        return self._others.popleft() if self._others else None
