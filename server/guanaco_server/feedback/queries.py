"""Every query on ratings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.feedback.tables import FeedbackRow


async def is_rated(session: AsyncSession, conversation_id: str) -> bool:
    found = await session.scalar(
        select(FeedbackRow.id).where(FeedbackRow.conversation_id == conversation_id)
    )
    return found is not None


async def by_id(session: AsyncSession, feedback_id: str) -> FeedbackRow | None:
    return await session.get(FeedbackRow, feedback_id)


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


async def votes(session: AsyncSession) -> Sequence[Row[str, int, int]]:
    """Submission, thumbs up, thumbs down: of each user the latest rating."""
    place = (
        func.row_number()
        .over(
            partition_by=(FeedbackRow.submission_id, FeedbackRow.user_id),
            order_by=(FeedbackRow.created_at.desc(), FeedbackRow.id.desc()),
        )
        .label("place")
    )
    latest = select(FeedbackRow.submission_id, FeedbackRow.thumbs_up, place).subquery()
    up = func.sum(case((latest.c.thumbs_up, 1), else_=0))
    down = func.sum(case((latest.c.thumbs_up, 0), else_=1))
    rows = await session.execute(
        select(latest.c.submission_id, up, down)
        .where(latest.c.place == 1)
        .group_by(latest.c.submission_id)
    )
    return rows.all()


async def rated_conversations(session: AsyncSession) -> Sequence[Row[str, str]]:
    """Submission and conversation of every rating."""
    rows = await session.execute(select(FeedbackRow.submission_id, FeedbackRow.conversation_id))
    return rows.all()
