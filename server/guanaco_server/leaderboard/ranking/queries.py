"""Every query on standings and their history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, delete, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from guanaco.competitions import CHOSEN
from guanaco_server.leaderboard.ranking.rules import Score, Standing
from guanaco_server.leaderboard.tables import ScorePointRow, ScoreRow, StandingRow

DAY_HOURS = 24


async def of_competition(
    session: AsyncSession, competition: str
) -> Sequence[Row[str, int | None, float | None, float | None, float | None, str]]:
    rows = await session.execute(
        select(
            StandingRow.submission_id,
            StandingRow.rank,
            StandingRow.score,
            StandingRow.low,
            StandingRow.high,
            StandingRow.metrics,
        ).where(StandingRow.competition == competition)
    )
    return rows.all()


async def ranked_scores(session: AsyncSession, competition: str) -> list[Standing]:
    """Return the ranked submissions in the board's order."""
    rows = await of_competition(session, competition)
    found = [
        Standing(name, rank, Score(score, low, high))
        for name, rank, score, low, high, _ in rows
        if rank is not None and score is not None and low is not None and high is not None
    ]
    return sorted(found, key=lambda one: (one.rank, -one.score.low, one.submission_id))


async def of_submission(
    session: AsyncSession, submission_id: str, competition: str
) -> StandingRow | None:
    return await session.get(StandingRow, (competition, submission_id))


async def aggregates(
    session: AsyncSession, submission_id: str, competition: str | None
) -> Sequence[str]:
    """Return the aggregates as JSON, of one competition or of each. What apps chose themselves is in none."""
    statement = select(ScoreRow.tally).where(
        ScoreRow.submission_id == submission_id, ScoreRow.competition != CHOSEN
    )
    if competition is not None:
        statement = statement.where(ScoreRow.competition == competition)
    return (await session.scalars(statement)).all()


async def points(
    session: AsyncSession, submission_id: str, competition: str, since: datetime | None = None
) -> Sequence[ScorePointRow]:
    """Return the oldest first, including points without a score."""
    statement = (
        select(ScorePointRow)
        .where(
            ScorePointRow.submission_id == submission_id, ScorePointRow.competition == competition
        )
        .order_by(ScorePointRow.hour)
    )
    if since is not None:
        statement = statement.where(ScorePointRow.at >= since)
    return (await session.scalars(statement)).all()


async def past_scores(
    session: AsyncSession, submission_ids: Sequence[str], competition: str, since: datetime
) -> Sequence[Row[str, datetime, float | None, float | None, float | None]]:
    """Return the oldest first, as plain rows since they are thousands."""
    row = ScorePointRow
    statement = (
        select(row.submission_id, row.at, row.score, row.low, row.high)
        .where(
            row.submission_id.in_(submission_ids),
            row.competition == competition,
            row.at >= since,
            row.score.is_not(None),
        )
        .order_by(row.submission_id, row.hour)
    )
    return (await session.execute(statement)).all()


async def thin_points(session: AsyncSession, before_hour: int) -> None:
    """Keep only the first point of each day before that hour."""
    earlier = aliased(ScorePointRow)
    row = ScorePointRow
    has_earlier = (
        select(earlier.hour)
        .where(
            earlier.submission_id == row.submission_id,
            earlier.competition == row.competition,
            earlier.hour < row.hour,
            earlier.hour >= row.hour - row.hour % DAY_HOURS,
        )
        .exists()
    )
    await session.execute(
        delete(row)
        .where(row.hour < before_hour, has_earlier)
        .execution_options(synchronize_session=False)
    )
