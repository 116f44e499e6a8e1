"""Announces erased conversations to every process, so that no copy in memory outlives them by more than seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from guanaco_server.chat import queries
from guanaco_server.database.database import Database
from guanaco_server.runtime.background import Background

POLL_S = 1.0

OnErased = Callable[[Sequence[str]], None]

logger = logging.getLogger(__name__)


class ErasureWatch:
    """Reads which conversations were erased by any process, and tells the listeners of this one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: list[OnErased] = []
        self._seen = 0
        self._commits = database.watch_commits()
        self._background = Background("forgetting")

    def on_erased(self, listener: OnErased) -> None:
        """Have it called with the ids of conversations that are gone; it may hear of one twice."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Begin behind the erasures that were made before this process could remember anything."""
        async with self._database.read() as session:
            self._seen = await queries.last_erased(session)
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def look(self) -> None:
        """Pass on what was erased since the last look."""
        async with self._database.read() as session:
            rows = await queries.erased_after(session, self._seen)
        if rows:
            for listener in self._listeners:
                listener([conversation_id for _, conversation_id in rows])
            self._seen = rows[-1][0]

    async def _run(self) -> None:
        while True:
            await self._commits.wait(POLL_S)
            try:
                await self.look()
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning("erasures are noticed later: %s", type(error).__name__)
