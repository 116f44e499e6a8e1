"""Every query on competitions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.competitions.tables import CompetitionRow


async def by_id(session: AsyncSession, competition_id: str) -> CompetitionRow | None:
    return await session.get(CompetitionRow, competition_id)


async def all_rows(session: AsyncSession) -> Sequence[CompetitionRow]:
    return (await session.scalars(select(CompetitionRow).order_by(CompetitionRow.created_at))).all()
