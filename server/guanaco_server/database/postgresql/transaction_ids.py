"""Watches how close PostgreSQL is to running out of transaction ids.

Ids are 32 bits wide, and a row's age is told by the distance to the next one. At an age of 2^31 the oldest rows would
seem to lie in the future, so PostgreSQL refuses every write 3 million ids before. VACUUM ends the age of old rows
("freezes" them), and autovacuum does so by itself from ``autovacuum_freeze_max_age`` on, unless something holds it back: an
old transaction, a prepared one, a replication slot. Multixact ids (rows that several transactions lock) are counted apart,
with the same limit.

SQLite has no such ids.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from guanaco_server.database.database import Database
from guanaco_server.observability.metrics import IdGauges, Metrics
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

INTERVAL_S = 60.0
WINDOW_READINGS = 61  # an hour: a pace that a nightly job does not change for long
USABLE_IDS = (
    2**31 - 3_000_000
)  # the oldest may become as old; from then on PostgreSQL refuses to write
MESSAGES_A_TURN = 2  # the user's and the reply
DAY_S = 86_400.0

# Reads only, so it uses up no id. pg_snapshot_xmax is the next id with its epoch: it does not wrap.
READ = text("""
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_id,
    (SELECT max(age(datfrozenxid)) FROM pg_database) AS oldest,
    (SELECT max(mxid_age(datminmxid)) FROM pg_database) AS oldest_multixact,
    current_setting('autovacuum_freeze_max_age')::bigint AS frozen_at,
    current_setting('autovacuum_multixact_freeze_max_age')::bigint AS multixact_frozen_at,
    (SELECT coalesce(sum(n_tup_ins), 0)::bigint FROM pg_stat_user_tables
     WHERE relid = to_regclass('messages') OR relid IN (SELECT relid FROM pg_partition_tree(to_regclass('messages')))
    ) AS messages
""")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IdReading:
    """The server's figures at one time. ``next_id`` and ``messages`` (rows inserted) only grow."""

    at_s: float
    next_id: int
    oldest: int
    oldest_multixact: int
    frozen_at: int
    multixact_frozen_at: int
    messages: int


def gauges(first: IdReading, last: IdReading) -> IdGauges:
    """Derive the gauges; the pace is that between the two readings. Nothing is known of a pace of no time, or of no turns."""
    used = last.next_id - first.next_id
    elapsed_s = last.at_s - first.at_s
    turns = (last.messages - first.messages) / MESSAGES_A_TURN
    left = max(0, USABLE_IDS - last.oldest)
    return IdGauges(
        ages={"transaction": last.oldest, "multixact": last.oldest_multixact},
        vacuum_at={"transaction": last.frozen_at, "multixact": last.multixact_frozen_at},
        days_left=_days(left, used, elapsed_s) if elapsed_s > 0 else None,
        per_thousand_turns=1000 * used / turns if turns > 0 else None,
    )


def _days(ids: int, used: int, elapsed_s: float) -> float:
    return ids * elapsed_s / used / DAY_S if used else math.inf


async def read_ids(database: Database, now_s: float) -> IdReading:
    async with database.read() as session:
        row = (await session.execute(READ)).one()
    return IdReading(now_s, *row)


class TransactionIdGauges:
    """Reads the gauges once a minute; on SQLite it does nothing."""

    def __init__(self, database: Database, metrics: Metrics, clock: Clock) -> None:
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._readings: deque[IdReading] = deque(maxlen=WINDOW_READINGS)
        self._background = Background("transaction id gauges")

    async def start(self) -> None:
        if self._database.engine.dialect.name == "postgresql":
            self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def take(self) -> None:
        reading = await read_ids(self._database, self._clock.now().timestamp())
        if self._readings and reading.messages < self._readings[-1].messages:
            self._readings.clear()  # a partition was dropped, or the statistics were reset
        self._readings.append(reading)
        self._metrics.note_transaction_ids(gauges(self._readings[0], reading))

    async def _run(self) -> None:
        while True:
            try:
                await self.take()
            except (DBAPIError, OSError) as error:
                logger.warning("the gauges of transaction ids stay as they were: %s", error)
            await asyncio.sleep(INTERVAL_S)
