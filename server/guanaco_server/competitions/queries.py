"""Every query on competitions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.competitions.tables import CompetitionRow
from guanaco_server.database.database import among


async def by_id(session: AsyncSession, competition_id: str) -> CompetitionRow | None:
    return await session.get(CompetitionRow, competition_id)


async def locked(session: AsyncSession, competition_id: str) -> CompetitionRow | None:
    """Lock a competition; waits for every transaction that holds it."""
    return await session.get(CompetitionRow, competition_id, with_for_update=True)


async def hold(session: AsyncSession, competition_ids: Collection[str]) -> None:
    """Keep competitions from being locked until the transaction ends. Many transactions may hold one at once."""
    if competition_ids:
        await session.execute(
            select(CompetitionRow.id)
            .where(among(session, CompetitionRow.id, competition_ids))
            .with_for_update(read=True)
        )


async def frozen(session: AsyncSession, competition_ids: Collection[str]) -> set[str]:
    """Return which of these competitions are frozen."""
    statement = select(CompetitionRow.id).where(
        among(session, CompetitionRow.id, competition_ids), CompetitionRow.frozen_at.is_not(None)
    )
    return set(await session.scalars(statement))


async def all_rows(session: AsyncSession) -> Sequence[CompetitionRow]:
    return (await session.scalars(select(CompetitionRow).order_by(CompetitionRow.created_at))).all()
