"""When each deployment was last asked for something: noted in memory, written down once a second at most."""

from __future__ import annotations

from datetime import datetime

from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.runtime.clock import Clock


class Traffic:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: dict[str, datetime] = {}

    def note(self, submission_id: str) -> None:
        self._noted[submission_id] = self._clock.now()

    async def write(self) -> None:
        """What was noted since the last time."""
        noted = dict(self._noted)
        if not noted:
            return
        async with self._database.write() as session:
            for submission_id, at in noted.items():
                await queries.note_traffic(session, submission_id, at)
        self._noted = {name: at for name, at in self._noted.items() if noted.get(name) != at}
