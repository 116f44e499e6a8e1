"""Counts of what is going on in conversations, by submission. Routing and scaling work with them."""

from __future__ import annotations

from datetime import timedelta

from guanaco_server.chat import queries
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock


class ConversationActivity:
    """A conversation is open for ``open_for`` after its opening, and whenever a reply is being written."""

    def __init__(self, database: Database, clock: Clock, open_for: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._open_for = open_for

    async def open_conversations(self) -> dict[str, int]:
        now = self._clock.now()
        async with self._database.read() as session:
            return await queries.open_conversations(session, now, now - self._open_for)

    async def open_streams(self) -> dict[str, int]:
        """Count the replies that are being written now."""
        async with self._database.read() as session:
            return await queries.open_turns(session, self._clock.now())
