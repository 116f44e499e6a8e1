"""Every query on seasons."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.leaderboard.tables import SeasonRow


async def season(session: AsyncSession, competition: str) -> SeasonRow | None:
    return await session.get(SeasonRow, competition)


async def unweighed(session: AsyncSession) -> list[str]:
    """Return the competitions whose season does not say yet how few votes decide."""
    found = await session.scalars(
        select(SeasonRow.competition).where(SeasonRow.pairs.is_(None)).order_by(SeasonRow.frozen_at)
    )
    return list(found)


async def keep_pairs(session: AsyncSession, competition: str, pairs: str) -> None:
    await session.execute(
        update(SeasonRow).where(SeasonRow.competition == competition).values(pairs=pairs)
    )


async def keep_season(
    session: AsyncSession, competition: str, frozen_at: datetime, content: bytes, sha256: str
) -> SeasonRow:
    """Store a season and return it. When two processes freeze at once, the first one's is kept."""
    dialect = session.get_bind().dialect.name
    insert = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(SeasonRow)
    await session.execute(
        insert.values(
            competition=competition, frozen_at=frozen_at, ranking=content, sha256=sha256
        ).on_conflict_do_nothing()
    )
    kept = await season(session, competition)
    assert kept is not None
    return kept
