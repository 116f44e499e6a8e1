"""Tells whether a read replica may be read: it has replayed what the primary had written STALENESS_S ago.

    each second, when somebody asks:   primary ── its WAL position now ──▶ mark (time, position)
                                       replica ── the position it has replayed ──▶ it is as fresh as the newest mark before that

Positions are compared, not times: a replica of an idle primary is fresh, one that has lost its primary is not, and no clock of
another machine is asked. A replica that is behind, away, or no replica any more is not read until it is one again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

STALENESS_S = 5.0
LOOK_EVERY_S = 1.0
ANSWER_TIMEOUT_S = 2.0

REPLAYED = text(
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint END"
)
WRITTEN = text("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

is_writer: ContextVar[bool] = ContextVar("is_writer", default=False)
"""True if the request's browser has written within STALENESS_S, so that it must read what it wrote."""

logger = logging.getLogger(__name__)


class Freshness:
    """Decides from positions and times alone."""

    def __init__(self, staleness_s: float = STALENESS_S) -> None:
        self._staleness_s = staleness_s
        self._marks: deque[tuple[float, int]] = deque()
        self._fresh_at = float("-inf")

    def note(self, at: float, written: int, replayed: int | None) -> None:
        """Note what the primary had written at a time, and what the replica had replayed later; None: it is no replica."""
        self._marks.append((at, written))
        while self._marks and self._marks[0][0] < at - 2 * self._staleness_s:
            self._marks.popleft()
        if replayed is None:
            self._fresh_at = float("-inf")
            return
        reached = (when for when, position in reversed(self._marks) if position <= replayed)
        self._fresh_at = max(self._fresh_at, next(reached, self._fresh_at))

    def lag_s(self, now: float) -> float:
        """Return how many seconds the replica may be behind."""
        return now - self._fresh_at

    def is_fresh(self, now: float) -> bool:
        return self.lag_s(now) <= self._staleness_s


class ReadReplica:
    """``read_written`` asks the primary for its WAL position."""

    def __init__(self, engine: AsyncEngine, read_written: Callable[[], Awaitable[int]]) -> None:
        self.engine = engine
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._read_written = read_written
        self._freshness = Freshness()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._was_fresh: bool | None = None

    async def may_be_read(self) -> bool:
        async with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
                await self._look()
        return self._freshness.is_fresh(time.monotonic())

    async def open(self) -> AsyncSession | None:
        """Return a session that has a connection; None where the replica does not give one."""
        session = self.sessions()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await session.connection()
        except (DBAPIError, OSError, TimeoutError):
            await session.close()
            self._looked_at = float("-inf")
            return None
        return session

    async def _look(self) -> None:
        at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                written = await self._read_written()
                async with self.sessions() as session:
                    replayed = await session.scalar(REPLAYED)
            self._freshness.note(at, written, replayed)
        except (DBAPIError, OSError, TimeoutError):
            pass  # what it showed gets older, until it is too old to be read
        self._looked_at = time.monotonic()
        self._tell(self._freshness.is_fresh(self._looked_at))

    def _tell(self, is_fresh: bool) -> None:
        if self._was_fresh is not None and is_fresh != self._was_fresh:
            logger.warning(
                "the read replica is up to date again and is read"
                if is_fresh
                else f"the read replica is away, or more than {STALENESS_S:.0f} s behind: the primary is read instead"
            )
        self._was_fresh = is_fresh
