"""Every query on ratings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.database import among
from guanaco_server.feedback.tables import FeedbackRow


async def insert(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Of several ratings of one conversation the first stays; the ids of those that were inserted."""
    bulk = BulkInsert(session, FeedbackRow, rows)
    statement = bulk.statement.on_conflict_do_nothing(index_elements=["conversation_id"])
    inserted = await session.execute(statement.returning(FeedbackRow.id), bulk.parameters)
    return set(inserted.scalars())


async def latest_times(
    session: AsyncSession, user_ids: Collection[str], since: datetime
) -> dict[str, list[datetime]]:
    """When each of these users has rated since then, oldest first."""
    rows = await session.execute(
        select(FeedbackRow.user_id, FeedbackRow.created_at)
        .where(among(session, FeedbackRow.user_id, user_ids), FeedbackRow.created_at > since)
        .order_by(FeedbackRow.created_at)
    )
    found: dict[str, list[datetime]] = {}
    for user_id, at in rows:
        found.setdefault(user_id, []).append(at)
    return found


async def after(
    session: AsyncSession,
    submission_id: str,
    position: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[FeedbackRow]:
    """A submission's ratings after a position, oldest first."""
    statement = select(FeedbackRow).where(FeedbackRow.submission_id == submission_id)
    if position is not None:
        at, feedback_id = position
        statement = statement.where(
            or_(
                FeedbackRow.created_at > at,
                and_(FeedbackRow.created_at == at, FeedbackRow.id > feedback_id),
            )
        )
    statement = statement.order_by(FeedbackRow.created_at, FeedbackRow.id).limit(limit)
    return (await session.scalars(statement)).all()


async def counts(session: AsyncSession) -> dict[str, int]:
    """Ratings by submission."""
    rows = await session.execute(
        select(FeedbackRow.submission_id, func.count()).group_by(FeedbackRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}
