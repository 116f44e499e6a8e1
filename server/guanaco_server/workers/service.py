"""Keeps the list of live workers, has one take over what a dead one left, and elects the leader.

    entered ──▶ seen, seen, … ──(silent for silence_s)──▶ claimed by one survivor ──▶ taken over ──(FORGET_S)──▶ forgotten
                                                             ▲                            │
                                                             └─────────(claimed)──────────┘

A worker that was only slow learns at its next beat that it was given up, and ends. Before that it may have begun
something new, and a survivor may die while it takes over: that is why a silent worker is claimed again and again. Times are the workers' own
clocks: they may differ by much less than ``silence_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy.exc import DBAPIError

from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.workers import queries

CLAIM_SILENCES = 2  # taking over is one statement; a survivor that needs as long as this has died
FORGET_S = 3_600  # a worker that was given up has ended long before
LEASE_POLL_S = 1.0


class WorkerService:
    """One worker's view of all; ``executor_id`` is its own name."""

    def __init__(
        self, database: Database, clock: Clock, executor_id: str, silence_s: float
    ) -> None:
        self._database = database
        self._clock = clock
        self.executor_id = executor_id
        self.silence_s = silence_s
        self._silence = timedelta(seconds=silence_s)
        self._claim = CLAIM_SILENCES * self._silence

    async def enter(self) -> bool:
        """Register this worker. Return False while a survivor takes over what its predecessor left: then try again."""
        now = self._clock.now()
        return await self._database.write_unit(
            lambda session: queries.enter(session, self.executor_id, now, now - self._claim)
        )

    async def beat(self) -> bool:
        """Record that this worker lives. Return False if it was given up: then it must end."""
        return await self._database.write_unit(
            lambda session: queries.beat(session, self.executor_id, self._clock.now()),
            is_durable=False,
        )

    async def list_silent(self) -> Sequence[str]:
        """List the others that are silent. This one is not, whatever its clock was set to since its last beat."""
        now = self._clock.now()
        async with self._database.read() as session:
            silent = await queries.silent(session, now - self._silence, now - self._claim)
        return [executor_id for executor_id in silent if executor_id != self.executor_id]

    async def claim(self, executor_id: str) -> bool:
        """Return True for the one survivor that is to take over; it ends with ``end_claim``."""
        now = self._clock.now()
        return await self._database.write_unit(
            lambda session: queries.claim(
                session,
                executor_id,
                self.executor_id,
                now,
                now - self._silence,
                now - self._claim,
            )
        )

    async def end_claim(self, executor_id: str) -> None:
        seen_before = self._clock.now() - timedelta(seconds=FORGET_S)
        await self._database.write_unit(
            lambda session: queries.end_claim(session, executor_id, self.executor_id, seen_before)
        )

    async def list_known(self) -> Sequence[str]:
        """Every worker that lives, or that a survivor takes over from."""
        async with self._database.read() as session:
            return await queries.executors(session)

    async def count_living(self) -> int:
        async with self._database.read() as session:
            return await queries.count_living(session, self._clock.now() - self._silence)

    async def take_lease(self, name: str) -> bool:
        """Take or renew it, for ``silence_s``; False while another worker holds it."""
        now = self._clock.now()
        return await self._database.write_unit(
            lambda session: queries.take_lease(
                session, name, self.executor_id, now, now + self._silence
            )
        )

    async def release_lease(self, name: str) -> None:
        await self._database.write_unit(
            lambda session: queries.release_lease(session, name, self.executor_id)
        )

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Wait for the lease, and keep it for the block."""
        while not await self.take_lease(name):  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(LEASE_POLL_S)
        renewing = asyncio.create_task(self._renew(name))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(DBAPIError, OSError):  # then it runs out
                await self.release_lease(name)

    async def _renew(self, name: str) -> None:
        while True:
            await asyncio.sleep(self.silence_s / 3)
            with contextlib.suppress(DBAPIError, OSError):  # the next one may still be in time
                await self.take_lease(name)
