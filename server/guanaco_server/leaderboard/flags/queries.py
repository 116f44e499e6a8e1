"""Every query on the audit trail of left-out ratings, and on the slots in which bursts are found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Row, Select, delete, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.database import among
from guanaco_server.leaderboard.tables import RatingSlotRow, VoteFlagRow


async def of_ratings(session: AsyncSession, feedback_ids: Iterable[str]) -> Sequence[VoteFlagRow]:
    statement = select(VoteFlagRow).where(among(session, VoteFlagRow.feedback_id, feedback_ids))
    return (await session.scalars(statement)).all()


async def newest(
    session: AsyncSession,
    competition: str | None,
    submission_id: str | None,
    limit: int,
    duels: bool | None,
) -> Sequence[VoteFlagRow]:
    """Return the newest first: of ratings, of duels, or of both."""
    statement = select(VoteFlagRow)
    if duels is not None:
        has_rival = VoteFlagRow.rival_id.is_not(None)
        statement = statement.where(has_rival if duels else ~has_rival)
    if competition is not None:
        statement = statement.where(VoteFlagRow.competition == competition)
    if submission_id is not None:
        is_of = (VoteFlagRow.submission_id == submission_id, VoteFlagRow.rival_id == submission_id)
        statement = statement.where(or_(*is_of))
    order = (VoteFlagRow.at.desc(), VoteFlagRow.feedback_id, VoteFlagRow.rule)
    return (await session.scalars(statement.order_by(*order).limit(limit))).all()


async def allowed(
    session: AsyncSession, competition: str, before: datetime | None
) -> set[tuple[str, str]]:
    """Return the (rating or battle, rule) pairs that an admin has allowed, or had allowed before that time."""
    row = VoteFlagRow
    statement = select(row.feedback_id, row.rule).where(
        row.competition == competition, row.allowed_at.is_not(None)
    )
    if before is not None:
        statement = statement.where(row.allowed_at < before)
    return {(feedback_id, rule) for feedback_id, rule in await session.execute(statement)}


async def of_duels(session: AsyncSession, competition: str) -> dict[tuple[str, str], bool]:
    """Return the (battle, rule) pairs of a competition's duels that were flagged, and whether each flag is lifted."""
    row = VoteFlagRow
    rows = await session.execute(
        select(row.feedback_id, row.rule, row.lifted_at.is_not(None)).where(
            row.competition == competition, row.rival_id.is_not(None)
        )
    )
    return {(battle_id, rule): is_lifted for battle_id, rule, is_lifted in rows}


async def note_duels(session: AsyncSession, rows: Sequence[Mapping[str, object]]) -> None:
    """Store flags of duels; one that was lifted holds again."""
    bulk = BulkInsert(session, VoteFlagRow, rows)
    statement = bulk.statement.on_conflict_do_update(
        index_elements=["feedback_id", "rule"], set_={"lifted_at": None}
    )
    await session.execute(statement, bulk.parameters)


async def lift(session: AsyncSession, rule: str, battles: Collection[str], at: datetime) -> None:
    row = VoteFlagRow
    await session.execute(
        update(row)
        .where(row.rule == rule, among(session, row.feedback_id, battles))
        .values(lifted_at=at)
        .execution_options(synchronize_session=False)
    )


def left_out() -> Select[str]:
    """Select the ratings that a rule leaves out now."""
    return select(VoteFlagRow.feedback_id).where(
        VoteFlagRow.lifted_at.is_(None), VoteFlagRow.allowed_at.is_(None)
    )


async def allow(session: AsyncSession, feedback_id: str, at: datetime, by: str) -> bool:
    """Allow what no admin has allowed yet; return whether there was any."""
    found = await session.execute(
        update(VoteFlagRow)
        .where(VoteFlagRow.feedback_id == feedback_id, VoteFlagRow.allowed_at.is_(None))
        .values(allowed_at=at, allowed_by=by)
        .returning(VoteFlagRow.rule)
    )
    return bool(found.all())


async def add_to_slots(session: AsyncSession, counts: dict[tuple[str, str, int], int]) -> None:
    """Add counts by (submission, competition, slot)."""
    if not counts:
        return
    rows = [
        {
            "submission_id": submission,
            "competition": competition,
            "slot": slot,
            "ratings": count,
            "is_burst": False,
        }
        for (submission, competition, slot), count in counts.items()
    ]
    bulk = BulkInsert(session, RatingSlotRow, rows)
    statement = bulk.statement.on_conflict_do_update(
        index_elements=["submission_id", "competition", "slot"],
        set_={"ratings": RatingSlotRow.ratings + bulk.statement.excluded.ratings},
    )
    await session.execute(statement, bulk.parameters)


async def large_slots(
    session: AsyncSession, first: int, last: int, over: int
) -> Sequence[RatingSlotRow]:
    """Return the slots with more ratings than ``over``, which is at least 30."""
    statement = select(RatingSlotRow).where(
        text("ratings > 30"),  # spelled like the condition of its index
        RatingSlotRow.ratings > over,
        RatingSlotRow.slot.between(first, last),
    )
    return (await session.scalars(statement)).all()


async def ratings_by_slot(
    session: AsyncSession, competition: str, slots: Collection[int]
) -> Sequence[Row[str, int, int]]:
    """Return submission, slot and ratings of every submission that was rated in these slots."""
    rows = await session.execute(
        select(RatingSlotRow.submission_id, RatingSlotRow.slot, RatingSlotRow.ratings).where(
            RatingSlotRow.competition == competition, RatingSlotRow.slot.in_(slots)
        )
    )
    return rows.all()


async def ratings_within(
    session: AsyncSession, submission_id: str, competition: str, first: int, last: int
) -> int:
    statement = select(func.sum(RatingSlotRow.ratings)).where(
        RatingSlotRow.submission_id == submission_id,
        RatingSlotRow.competition == competition,
        RatingSlotRow.slot.between(first, last),
    )
    return await session.scalar(statement) or 0


async def bursts(session: AsyncSession) -> Sequence[RatingSlotRow]:
    """Return the slots that are bursts."""
    return (await session.scalars(select(RatingSlotRow).where(text("is_burst")))).all()


async def set_slot(session: AsyncSession, key: tuple[str, str, int], ratings: int) -> bool:
    """Set how many ratings a (submission, competition, slot) has, no burst at first; return whether it was one."""
    submission, competition, slot = key
    was_burst = await session.scalar(
        delete(RatingSlotRow)
        .where(
            RatingSlotRow.submission_id == submission,
            RatingSlotRow.competition == competition,
            RatingSlotRow.slot == slot,
        )
        .returning(RatingSlotRow.is_burst)
        .execution_options(synchronize_session=False)
    )
    if ratings:
        await add_to_slots(session, {key: ratings})
    return bool(was_burst)


async def drop_slots(session: AsyncSession, submission_id: str) -> list[tuple[str, str, int]]:
    """Delete a submission's slots, and return them: submission, competition, slot."""
    rows = await session.execute(
        delete(RatingSlotRow)
        .where(RatingSlotRow.submission_id == submission_id)
        .returning(RatingSlotRow.competition, RatingSlotRow.slot)
        .execution_options(synchronize_session=False)
    )
    return [(submission_id, competition, slot) for competition, slot in rows]
