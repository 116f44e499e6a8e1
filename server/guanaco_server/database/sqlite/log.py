"""Empties SQLite's write-ahead log, so that nothing of what was deleted is left in it.

A checkpoint that empties it holds the write lock, and SQLite would have it wait with that for every reader: one slow reader and one
erasure, and no chat writes for half a minute. So each attempt waits for nobody, and there is another one a little later.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Sequence

from guanaco_server.database.group_commit import GroupCommit
from guanaco_server.database.sqlite.connection import ResultConnection

EVERY_S = 0.5  # at most: each writes all that has changed to the disk, while others wait
RETRY_S = 0.05
PATIENCE_S = 30.0  # with readers


class LogEmptying:
    """Whoever asks while it is being done shares the next one. ``attempt`` tells whether it is done."""

    def __init__(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        self._attempt = attempt
        self._asked: GroupCommit[None, bool] = GroupCommit(self._empty, max_batch=sys.maxsize)
        self._patience_s = PATIENCE_S
        self._done_at = -math.inf

    async def empty(self) -> bool:
        """Return whether it is empty; a reader may have prevented that for too long."""
        return await self._asked.submit(None)

    async def close(self) -> None:
        """Be patient with readers no longer, and wait for the end."""
        self._patience_s = 0.0
        await self._asked.drain()

    async def _empty(self, asked: Sequence[None]) -> list[bool | Exception]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._done_at + EVERY_S - loop.time()))
        begun = loop.time()
        while not (is_empty := await self._attempt()):
            if loop.time() >= begun + self._patience_s:
                break
            await asyncio.sleep(RETRY_S)
        self._done_at = loop.time()
        return [is_empty] * len(asked)


def checkpoint(connection: ResultConnection, *, patience_s: int) -> bool:
    """Try to empty the log, and return whether it is empty. ``patience_s`` is what the connection has with others otherwise."""
    connection.execute("PRAGMA busy_timeout=0")
    try:
        found = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout={patience_s * 1_000}")
    ((is_busy, _, _),) = found.rows
    return not is_busy
