"""Every query on the audit trail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import Select, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import among
from guanaco_server.leaderboard.tables import VoteFlagRow


async def of_ratings(session: AsyncSession, feedback_ids: Iterable[str]) -> Sequence[VoteFlagRow]:
    statement = select(VoteFlagRow).where(among(session, VoteFlagRow.feedback_id, feedback_ids))
    return (await session.scalars(statement)).all()


async def newest(
    session: AsyncSession, competition: str | None, submission_id: str | None, limit: int
) -> Sequence[VoteFlagRow]:
    statement = select(VoteFlagRow)
    if competition is not None:
        statement = statement.where(VoteFlagRow.competition == competition)
    if submission_id is not None:
        statement = statement.where(VoteFlagRow.submission_id == submission_id)
    order = (VoteFlagRow.at.desc(), VoteFlagRow.feedback_id, VoteFlagRow.rule)
    return (await session.scalars(statement.order_by(*order).limit(limit))).all()


async def allowed(
    session: AsyncSession, competition: str, before: datetime
) -> set[tuple[str, str]]:
    """(rating, rule) that an admin had allowed by then."""
    rows = await session.execute(
        select(VoteFlagRow.feedback_id, VoteFlagRow.rule).where(
            VoteFlagRow.competition == competition, VoteFlagRow.allowed_at < before
        )
    )
    return {(feedback_id, rule) for feedback_id, rule in rows}


def left_out() -> Select[str]:
    """The ratings that some rule leaves out now."""
    return select(VoteFlagRow.feedback_id).where(
        VoteFlagRow.lifted_at.is_(None), VoteFlagRow.allowed_at.is_(None)
    )


async def allow(session: AsyncSession, feedback_id: str, at: datetime, by: str) -> None:
    await session.execute(
        update(VoteFlagRow)
        .where(VoteFlagRow.feedback_id == feedback_id, VoteFlagRow.allowed_at.is_(None))
        .values(allowed_at=at, allowed_by=by)
    )


async def drop(session: AsyncSession, feedback_ids: Iterable[str]) -> None:
    await session.execute(
        delete(VoteFlagRow).where(among(session, VoteFlagRow.feedback_id, feedback_ids))
    )
