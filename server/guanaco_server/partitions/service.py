"""Periods: which one a new conversation is stored in, and the partitions of each.

PostgreSQL only. A period is made ahead of its time, with one partition of each table; it ends by dropping them. While a
competition has no period, its conversations get ids without one, and are stored in the default partitions: so nothing
fails when nobody makes periods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database
from guanaco_server.partitions.ids import CONVERSATION, RATING, bounds
from guanaco_server.partitions.tables import PeriodRow
from guanaco_server.runtime.clock import Clock

FRESH = timedelta(seconds=30)  # how old may be what is known of the periods
AHEAD = timedelta(days=2)  # a period is made so long before it begins
# A lock that is not had at once is tried for again a minute later: whoever waits for one keeps all others out, and
# PostgreSQL looks for deadlocks after a second only.
LOCK_TIMEOUT = text("SET LOCAL lock_timeout = '500ms'")
# A foreign key of a new partition takes this lock on what it refers to: taken first, as turns do, so that none waits for the other.
REFERRED_FIRST = text("LOCK TABLE submissions, conversations IN SHARE ROW EXCLUSIVE MODE")


@dataclass(frozen=True)
class Partitioned:
    """A table whose partitions are ranges of ``key``, ids of that kind."""

    table: str
    key: str
    kind: str
    identity: str

    @property
    def default(self) -> str:
        """The partition of all that has no period: the table as it was before."""
        return f"{self.table}_before"

    def partition(self, period: int) -> str:
        return f"{self.table}_p{period}"


# In the order in which they may be dropped: none refers to one before it.
TABLES = (
    Partitioned("messages", "conversation_id", CONVERSATION, "id"),
    Partitioned("feedback_copies", "feedback_id", RATING, "number"),
    Partitioned("feedback", "conversation_id", CONVERSATION, "id"),
)


@dataclass(frozen=True)
class Period:
    number: int
    competition: str
    starts_at: datetime
    ends_at: datetime


class Periods:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.are_kept = database.engine.dialect.name == "postgresql"
        self._known: Sequence[Period] = ()
        self._read_at: datetime | None = None
        self._is_validated = False

    async def current(self, competition: str) -> int | None:
        """Return the period of a conversation that begins now; None where there is none."""
        if not self.are_kept:
            return None
        now = self._clock.now()
        if self._read_at is None or not timedelta(0) <= now - self._read_at < FRESH:
            async with self._database.read() as session:
                self._known = await _ending_after(session, now)
            self._read_at = now
        return next(
            (
                one.number
                for one in self._known
                if one.competition == competition and one.starts_at <= now < one.ends_at
            ),
            None,
        )

    async def make(self, widths: Mapping[str, timedelta]) -> int:
        """Make the periods that these competitions lack, now and ahead, as long as given. Return how many were made."""
        if not self.are_kept:
            return 0
        if not self._is_validated:
            await self._validate()
        now = self._clock.now()
        async with self._database.write() as session:
            for competition, width in widths.items():
                await _shorten(session, competition, now, now + width)
            known = await _ending_after(session, now)
        made = 0
        for competition, width in widths.items():
            last = max(
                (one.ends_at for one in known if one.competition == competition), default=now
            )
            while last < now + AHEAD:
                await self._make(competition, last, last + width)
                last, made = last + width, made + 1
        return made

    async def ended(self, competition: str, before: datetime) -> list[Period]:
        """Return the competition's periods that ended by then and are not dropped."""
        row = PeriodRow
        async with self._database.read() as session:
            rows = await session.scalars(
                select(row)
                .where(
                    row.competition == competition, row.ends_at <= before, row.dropped_at.is_(None)
                )
                .order_by(row.number)
            )
            return [_read(found) for found in rows]

    async def drop(self, period: Period) -> None:
        """Drop the period's partitions, each in a transaction of its own, for a drop keeps all others from the table. May be repeated."""
        await self._delete_strays(period)
        for one in TABLES:
            async with self._database.write() as session:
                await session.execute(LOCK_TIMEOUT)
                await session.execute(text(f"DROP TABLE IF EXISTS {one.partition(period.number)}"))

    async def note_dropped(self, session: AsyncSession, period: Period) -> None:
        await session.execute(
            update(PeriodRow)
            .where(PeriodRow.number == period.number)
            .values(dropped_at=self._clock.now())
        )

    async def _make(self, competition: str, starts_at: datetime, ends_at: datetime) -> None:
        async with self._database.write() as session:
            await session.execute(LOCK_TIMEOUT)
            row = PeriodRow(competition=competition, starts_at=starts_at, ends_at=ends_at)
            session.add(row)
            await session.flush()
            await session.execute(REFERRED_FIRST)
            for one in reversed(TABLES):
                first, end = bounds(one.kind, row.number)
                partition = one.partition(row.number)
                await session.execute(
                    text(f"CREATE TABLE {partition} (LIKE {one.table} INCLUDING DEFAULTS)")
                )
                await session.execute(
                    text(f"ALTER TABLE {partition} ADD PRIMARY KEY ({one.identity})")
                )
                await session.execute(
                    text(
                        f"ALTER TABLE {one.table} ATTACH PARTITION {partition}"
                        f" FOR VALUES FROM ('{first}') TO ('{end}')"
                    )
                )

    async def _validate(self) -> None:
        """Have PostgreSQL check, once and without keeping anybody out, that no id in a default partition has a period.

        It would else read the whole default partition whenever a period is made.
        """
        for one in TABLES:
            async with self._database.write() as session:
                name = await session.scalar(
                    text(
                        "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(:table)"
                        " AND contype = 'c' AND NOT convalidated"
                    ),
                    {"table": one.default},
                )
                if name is not None:
                    await session.execute(
                        text(f"ALTER TABLE {one.default} VALIDATE CONSTRAINT {name}")
                    )
        self._is_validated = True

    async def _delete_strays(self, period: Period) -> None:
        """Delete copies of the period's ratings that lie elsewhere: a version without periods gave these ratings their ids."""
        partition = f"feedback_p{period.number}"
        first, end = bounds(RATING, period.number)
        async with self._database.write() as session:
            if await session.scalar(select(func.to_regclass(partition))) is None:
                return
            found = await session.scalars(
                text(f"SELECT id FROM {partition} WHERE id < :first OR id >= :end"),  # noqa: S608
                {"first": first, "end": end},
            )
            await session.execute(
                text("DELETE FROM feedback_copies WHERE feedback_id = ANY(:ids)"),
                {"ids": list(found)},
            )


async def _shorten(
    session: AsyncSession, competition: str, now: datetime, latest: datetime
) -> None:
    """End a period that would last longer: its competition's retention is shorter than it was."""
    row = PeriodRow
    await session.execute(
        update(row)
        .where(
            row.competition == competition,
            row.starts_at <= now,
            row.ends_at > latest,
            row.dropped_at.is_(None),
        )
        .values(ends_at=latest)
    )


async def _ending_after(session: AsyncSession, now: datetime) -> list[Period]:
    row = PeriodRow
    rows = await session.scalars(
        select(row).where(row.ends_at > now, row.dropped_at.is_(None)).order_by(row.number)
    )
    return [_read(found) for found in rows]


def _read(row: PeriodRow) -> Period:
    return Period(row.number, row.competition, row.starts_at, row.ends_at)
