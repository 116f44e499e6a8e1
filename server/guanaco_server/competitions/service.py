"""Competitions, as admins make them and everybody reads them. ``open`` is there without being made."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import OPEN, Competition, CompetitionRequest
from guanaco.errors import CompetitionClosed, CompetitionNotFound, InvalidInput
from guanaco_server.clock import Clock
from guanaco_server.competitions import queries
from guanaco_server.competitions.tables import CompetitionRow
from guanaco_server.database.database import Database

OPEN_COMPETITION = Competition(
    id=OPEN, name="Open", starts_at=datetime(2000, 1, 1, tzinfo=UTC), ends_at=None
)


class CompetitionService:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_all(self) -> list[Competition]:
        """``open`` first, then in the order in which they were made."""
        async with self._database.read() as session:
            found = {row.id: _read(row) for row in await queries.all_rows(session)}
        return list(({OPEN: OPEN_COMPETITION} | found).values())

    async def list_running(self) -> list[Competition]:
        """Those that take conversations now."""
        return [one for one in await self.list_all() if self._is_running(one)]

    async def find(self, competition_id: str) -> Competition:
        async with self._database.read() as session:
            row = await queries.by_id(session, competition_id)
        if row is not None:
            return _read(row)
        if competition_id == OPEN:
            return OPEN_COMPETITION
        raise CompetitionNotFound(competition_id)

    async def require_running(self, competition_id: str) -> Competition:
        """CompetitionClosed before its window, after it, and once it is frozen."""
        competition = await self.find(competition_id)
        if not self._is_running(competition):
            raise CompetitionClosed(competition_id)
        return competition

    async def hold_open(self, session: AsyncSession, competition_ids: Collection[str]) -> None:
        """Within the caller's transaction: none of them is frozen before it ends. ``open`` never is."""
        await queries.hold(session, set(competition_ids) - {OPEN})

    async def freeze(self, competition_id: str) -> Competition:
        """From this moment on nothing more counts; InvalidInput for ``open``. A frozen one stays as it is."""
        if competition_id == OPEN:
            raise InvalidInput("The open competition has no end, so it cannot be frozen.")
        async with self._database.write() as session:
            row = await queries.locked(session, competition_id)
            if row is None:
                raise CompetitionNotFound(competition_id)
            if row.frozen_at is None:
                row.frozen_at = row.updated_at = self._clock.now()
            return _read(row)

    async def put(self, competition_id: str, request: CompetitionRequest) -> Competition:
        """Make it, or change its rules; CompetitionClosed once it is frozen."""
        now = self._clock.now()
        async with self._database.write() as session:
            row = await queries.by_id(session, competition_id)
            if row is None:
                row = CompetitionRow(id=competition_id, created_at=now)
                session.add(row)
            elif row.frozen_at is not None:
                raise CompetitionClosed(competition_id)
            row.rules, row.updated_at = request, now
            return _read(row)

    def _is_running(self, competition: Competition) -> bool:
        return competition.frozen_at is None and competition.is_running(self._clock.now())


def _read(row: CompetitionRow) -> Competition:
    return Competition(id=row.id, frozen_at=row.frozen_at, **dict(row.rules))
