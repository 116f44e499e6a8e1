"""Every query on what the books keep: tallies, measured conversations, votes, visits and slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row as SqlRow
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.database import among
from guanaco_server.database.tables import Table
from guanaco_server.leaderboard.tables import (
    BooksRow,
    CountedWindowRow,
    MeasuredConversationRow,
    RatingSlotRow,
    RecountRow,
    ScoreRow,
    VisitRow,
    VoteRow,
)

Row = dict[str, Any]  # a row to be written, by column


async def open_books(session: AsyncSession) -> int:
    """The new version. Until this transaction ends, nobody else gets past this."""
    statement = (
        update(BooksRow).values(version=BooksRow.version + 1).returning(BooksRow.version)
    ).execution_options(synchronize_session=False)
    return (await session.execute(statement)).scalar_one()


async def version(session: AsyncSession) -> int:
    return (await session.scalars(select(BooksRow.version))).one()


async def put(session: AsyncSession, table: type[Table], rows: Sequence[Row]) -> None:
    """Insert them, or put them in the place of what has the same primary key."""
    if not rows:
        return
    keys = [column.name for column in table.__table__.primary_key]
    bulk = BulkInsert(session, table, rows)
    others = {name: bulk.statement.excluded[name] for name in rows[0] if name not in keys}
    statement = (
        bulk.statement.on_conflict_do_update(index_elements=keys, set_=others)
        if others
        else bulk.statement.on_conflict_do_nothing()
    )
    await session.execute(statement, bulk.parameters)


async def add(
    session: AsyncSession, table: type[Table], rows: Sequence[Mapping[str, object]]
) -> None:
    """Insert those whose primary key is not there yet."""
    if rows:
        bulk = BulkInsert(session, table, rows)
        await session.execute(bulk.statement.on_conflict_do_nothing(), bulk.parameters)


async def has_recounts(session: AsyncSession) -> bool:
    return await session.scalar(select(RecountRow.submission_id).limit(1)) is not None


async def take_recounts(session: AsyncSession, limit: int) -> list[str]:
    ids = (await session.scalars(select(RecountRow.submission_id).limit(limit))).all()
    if ids:
        await session.execute(
            delete(RecountRow).where(among(session, RecountRow.submission_id, ids))
        )
    return list(ids)


async def ask_recounts(session: AsyncSession, submission_ids: Iterable[str]) -> None:
    await put(session, RecountRow, [{"submission_id": one} for one in sorted(set(submission_ids))])


async def scores(session: AsyncSession, submission_ids: Iterable[str]) -> Sequence[ScoreRow]:
    statement = select(ScoreRow).where(among(session, ScoreRow.submission_id, submission_ids))
    return (await session.scalars(statement)).all()


async def scores_since(session: AsyncSession, version: int) -> Sequence[ScoreRow]:
    """Those that a later version has written."""
    return (await session.scalars(select(ScoreRow).where(ScoreRow.version > version))).all()


async def scored_in(session: AsyncSession, competition: str) -> Sequence[str]:
    statement = select(ScoreRow.submission_id).where(ScoreRow.competition == competition)
    return (await session.scalars(statement)).all()


async def vote_counts(session: AsyncSession) -> Sequence[SqlRow[str, str, int, int]]:
    """Competition, submission, thumbs up, thumbs down: of the votes that count."""
    rows = await session.execute(
        select(ScoreRow.competition, ScoreRow.submission_id, ScoreRow.up, ScoreRow.down)
    )
    return rows.all()


async def rating_counts(session: AsyncSession) -> Sequence[SqlRow[str, int]]:
    """Submission and ratings, over all competitions."""
    rows = await session.execute(
        select(ScoreRow.submission_id, func.sum(ScoreRow.rated)).group_by(ScoreRow.submission_id)
    )
    return rows.all()


async def measured(
    session: AsyncSession, conversation_ids: Iterable[str]
) -> Sequence[MeasuredConversationRow]:
    statement = select(MeasuredConversationRow).where(
        among(session, MeasuredConversationRow.conversation_id, conversation_ids)
    )
    return (await session.scalars(statement)).all()


async def measured_of_submission(
    session: AsyncSession, submission_id: str
) -> Sequence[MeasuredConversationRow]:
    statement = select(MeasuredConversationRow).where(
        MeasuredConversationRow.submission_id == submission_id
    )
    return (await session.scalars(statement)).all()


async def drop_measured(session: AsyncSession, conversation_ids: Iterable[str]) -> None:
    await session.execute(
        delete(MeasuredConversationRow).where(
            among(session, MeasuredConversationRow.conversation_id, conversation_ids)
        )
    )


async def days(
    session: AsyncSession, user_keys: Iterable[str]
) -> dict[tuple[str, str, str], list[int]]:
    """The days on which each (user, competition, submission) wrote: of each conversation the first two."""
    row = MeasuredConversationRow
    statement = select(
        row.user_key, row.competition, row.submission_id, row.first_day, row.second_day
    ).where(among(session, row.user_key, user_keys))
    found: dict[tuple[str, str, str], list[int]] = {}
    for user, competition, submission, first, second in await session.execute(statement):
        known = found.setdefault((user, competition, submission), [])
        known.extend(day for day in (first, second) if day is not None)
    return found


async def visits(
    session: AsyncSession, user_keys: Iterable[str]
) -> Sequence[SqlRow[str, str, str, int, bool]]:
    """User, competition, submission, first day and whether she returned: plain rows, for they are many."""
    row = VisitRow
    rows = await session.execute(
        select(
            row.user_key, row.competition, row.submission_id, row.first_day, row.has_returned
        ).where(among(session, row.user_key, user_keys))
    )
    return rows.all()


async def drop_visit(
    session: AsyncSession, user_key: str, competition: str, submission_id: str
) -> None:
    await session.execute(
        delete(VisitRow).where(
            VisitRow.user_key == user_key,
            VisitRow.competition == competition,
            VisitRow.submission_id == submission_id,
        )
    )


async def visits_of_submission(session: AsyncSession, submission_id: str) -> Sequence[VisitRow]:
    statement = select(VisitRow).where(VisitRow.submission_id == submission_id)
    return (await session.scalars(statement)).all()


async def votes(
    session: AsyncSession, user_keys: Iterable[str]
) -> Sequence[SqlRow[str, str, str, bool]]:
    """User, competition, submission and thumbs up: plain rows, for they are many."""
    row = VoteRow
    rows = await session.execute(
        select(row.user_key, row.competition, row.submission_id, row.thumbs_up).where(
            among(session, row.user_key, user_keys)
        )
    )
    return rows.all()


async def votes_of_submission(session: AsyncSession, submission_id: str) -> Sequence[VoteRow]:
    statement = select(VoteRow).where(VoteRow.submission_id == submission_id)
    return (await session.scalars(statement)).all()


async def ballots(session: AsyncSession, competition: str) -> Sequence[tuple[str, str, bool]]:
    """User, submission and thumbs up, of every vote in a competition."""
    rows = await session.execute(
        select(VoteRow.user_key, VoteRow.submission_id, VoteRow.thumbs_up).where(
            VoteRow.competition == competition
        )
    )
    return [(user, submission, thumbs_up) for user, submission, thumbs_up in rows]


async def add_to_slots(session: AsyncSession, counts: dict[tuple[str, str, int], int]) -> None:
    """Counts by (submission, competition, slot)."""
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
    """Those with more ratings than ``over``, which is at least 30."""
    statement = select(RatingSlotRow).where(
        text("ratings > 30"),  # as its index has it
        RatingSlotRow.ratings > over,
        RatingSlotRow.slot.between(first, last),
    )
    return (await session.scalars(statement)).all()


async def minutes(
    session: AsyncSession, competition: str, slots: Collection[int]
) -> Sequence[SqlRow[str, int, int]]:
    """Submission, slot and ratings, of all that were rated in those slots."""
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
    """As their index has it: IS TRUE would not use it."""
    return (await session.scalars(select(RatingSlotRow).where(text("is_burst")))).all()


async def drop_slots(session: AsyncSession, submission_id: str) -> list[tuple[str, str, int]]:
    """What there was: submission, competition, slot."""
    rows = await session.execute(
        delete(RatingSlotRow)
        .where(RatingSlotRow.submission_id == submission_id)
        .returning(RatingSlotRow.competition, RatingSlotRow.slot)
        .execution_options(synchronize_session=False)
    )
    return [(submission_id, competition, slot) for competition, slot in rows]


async def counted_windows(session: AsyncSession) -> dict[str, CountedWindowRow]:
    rows = await session.scalars(select(CountedWindowRow))
    return {row.competition: row for row in rows}


async def forget_users(session: AsyncSession, user_keys: Iterable[str]) -> set[str]:
    """Every row with their ids goes; the submissions that it was about."""
    users, touched = list(user_keys), set()
    for table in (MeasuredConversationRow, VoteRow, VisitRow):
        is_theirs = among(session, table.user_key, users)
        touched |= set(await session.scalars(select(table.submission_id).where(is_theirs)))
        await session.execute(delete(table).where(is_theirs))
    return touched
