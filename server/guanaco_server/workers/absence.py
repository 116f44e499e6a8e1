"""Tells whether any worker lives, in a process that is none: a dead worker cannot say so itself.

The platform that does all in one process needs no worker, so none is absent there. A worker's restart takes a while, and so
does its first start, beside this process: for ``patience`` its silence means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.workers import queries

LEAST_PATIENCE = timedelta(seconds=60)
SILENCES = 2  # after one of them, a survivor takes over


@dataclass(frozen=True)
class WorkerAbsence:
    """``since`` is when the last worker was heard of, or when this process began if there never was one."""

    since: datetime
    was_ever_heard: bool

    def __str__(self) -> str:
        at = f"{self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.was_ever_heard:
            return f"No worker has been heard of since {at}."
        return f"No worker has ever been heard of; this process began at {at}."


class WorkerAbsences:
    """``is_needed`` is False in a process that does a worker's work itself."""

    def __init__(
        self, database: Database, clock: Clock, silence_s: float, *, is_needed: bool
    ) -> None:
        self._database = database
        self._clock = clock
        self._is_needed = is_needed
        self.patience = max(LEAST_PATIENCE, SILENCES * timedelta(seconds=silence_s))
        self._began_at = clock.now()

    def begin(self) -> None:
        """Start counting now: the tables are ready, and a worker may have waited for them too."""
        self._began_at = self._clock.now()

    async def find(self) -> WorkerAbsence | None:
        """Return since when no worker has been heard of; None while one lives, or may be starting."""
        if not self._is_needed:
            return None
        async with self._database.read() as session:
            newest = await queries.newest_beat(session)
        heard_at = self._began_at if newest is None else max(newest, self._began_at)
        if self._clock.now() - heard_at < self.patience:
            return None
        return WorkerAbsence(newest or self._began_at, was_ever_heard=newest is not None)
