"""Counts of what is going on in conversations, by submission. Routing and scaling work with them."""

from __future__ import annotations

from guanaco_server.chat import queries
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock


class ConversationActivity:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def open_streams(self) -> dict[str, int]:
        """Count the turns that are being answered, or wait to be."""
        async with self._database.read() as session:
            return await queries.open_turns(session, self._clock.now())
