"""Every query on aggregates, counted conversations, votes and visits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Row as SqlRow
from sqlalchemy import case, delete, exists, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import plain_rows, upsert
from guanaco_server.database.database import among, among_rows
from guanaco_server.leaderboard.counting.aggregate import UserKey
from guanaco_server.leaderboard.counting.measurement import MARK
from guanaco_server.leaderboard.tables import (
    CorrectionRow,
    CountedConversationRow,
    CountedWindowRow,
    CountingLockRow,
    RatingSlotRow,
    RecountRow,
    ScoreRow,
    VisitRow,
    VoteRow,
    WithdrawnVoteRow,
)

UNSYNCED = {"synchronize_session": False}

VisitKey = tuple[str, str, str]  # user, competition, submission


async def lock_counting(session: AsyncSession) -> int:
    """Return the number of a new batch. Everybody else who calls this waits until the transaction ends."""
    row = CountingLockRow
    number = row.version + 1
    is_ours = row.definitions_at == row.version  # the batch before
    raised = update(row).values(
        version=number, definitions_at=case((is_ours, number), else_=row.definitions_at)
    )
    returning = raised.returning(row.version, row.definitions_at)
    version, definitions_at = (await session.execute(returning.execution_options(**UNSYNCED))).one()
    if definitions_at != version:
        await _mark_outdated(session, definitions_at)
        noted = update(row).values(definitions_at=version)
        await session.execute(noted.execution_options(**UNSYNCED))
    return version


async def _mark_outdated(session: AsyncSession, version: int) -> None:
    """Take measurements as outdated that an older process has replaced since batch ``version``.

    A process older than migration 0018 does not write ``definition``, but the aggregate that it writes has no mark.
    """
    touched = select(ScoreRow.submission_id).where(ScoreRow.version > version)
    row = CountedConversationRow
    await session.execute(
        update(row)
        .where(
            row.definition > 1,
            row.submission_id.in_(touched),
            row.tally.not_like(f'%"{MARK}:%'),
        )
        .values(definition=1)
        .execution_options(**UNSYNCED)
    )


async def outdated(session: AsyncSession, definition: int, limit: int) -> Sequence[str]:
    """Return some conversations that were measured by an older definition."""
    statement = (
        select(CountedConversationRow.conversation_id)
        .where(CountedConversationRow.definition < definition)
        .limit(limit)
    )
    return (await session.scalars(statement)).all()


async def version(session: AsyncSession) -> int:
    return (await session.scalars(select(CountingLockRow.version))).one()


async def has_recounts(session: AsyncSession) -> bool:
    return await session.scalar(select(RecountRow.submission_id).limit(1)) is not None


async def recounts(session: AsyncSession, limit: int) -> Sequence[str]:
    return (await session.scalars(select(RecountRow.submission_id).limit(limit))).all()


async def take_recounts(session: AsyncSession, limit: int) -> list[str]:
    ids = await recounts(session, limit)
    if ids:
        await session.execute(
            delete(RecountRow).where(among(session, RecountRow.submission_id, ids))
        )
    return list(ids)


async def ask_recounts(session: AsyncSession, submission_ids: Iterable[str]) -> None:
    await upsert(
        session, RecountRow, [{"submission_id": one} for one in sorted(set(submission_ids))]
    )


async def has_corrections(session: AsyncSession) -> bool:
    return await session.scalar(select(CorrectionRow.number).limit(1)) is not None


async def take_corrections(session: AsyncSession, limit: int) -> Sequence[CorrectionRow]:
    """Delete some corrections, the oldest first, and return them."""
    rows = (
        await session.scalars(select(CorrectionRow).order_by(CorrectionRow.number).limit(limit))
    ).all()
    numbers = [row.number for row in rows]
    if numbers:
        await session.execute(
            delete(CorrectionRow)
            .where(CorrectionRow.number.in_(numbers))
            .execution_options(**UNSYNCED)
        )
        session.expunge_all()
    return rows


async def scores(session: AsyncSession, submission_ids: Iterable[str]) -> Sequence[ScoreRow]:
    statement = select(ScoreRow).where(among(session, ScoreRow.submission_id, submission_ids))
    return (await session.scalars(statement)).all()


async def all_scores(session: AsyncSession) -> Sequence[ScoreRow]:
    return (await session.scalars(select(ScoreRow))).all()


async def scored_in(session: AsyncSession, competition: str) -> Sequence[str]:
    statement = select(ScoreRow.submission_id).where(ScoreRow.competition == competition)
    return (await session.scalars(statement)).all()


async def vote_counts(
    session: AsyncSession, competition: str | None = None
) -> Sequence[SqlRow[str, str, int, int]]:
    """Return competition, submission, thumbs up and thumbs down of the first votes, by which everything is decided."""
    row = ScoreRow
    turned = row.turned_up - row.turned_down
    up, down = row.up - turned + row.withdrawn_up, row.down + turned + row.withdrawn_down
    statement = select(row.competition, row.submission_id, up, down)
    if competition is not None:
        statement = statement.where(ScoreRow.competition == competition)
    return (await session.execute(statement)).all()


async def rated_in(session: AsyncSession, competition: str) -> set[str]:
    """Return the submissions of a competition with a rating that was given in its window."""
    score, slot = ScoreRow, RatingSlotRow
    has_rating = exists().where(
        slot.submission_id == score.submission_id, slot.competition == competition
    )
    statement = select(score.submission_id).where(score.competition == competition, has_rating)
    return set(await session.scalars(statement))


async def rating_counts(session: AsyncSession) -> Sequence[SqlRow[str, int]]:
    """Return each submission and its ratings in all competitions."""
    rows = await session.execute(
        select(ScoreRow.submission_id, func.sum(ScoreRow.rated)).group_by(ScoreRow.submission_id)
    )
    return rows.all()


class CountedConversation(NamedTuple):
    """A conversation's part of its submission's aggregate, as a plain row since they are many."""

    conversation_id: str
    submission_id: str
    competition: str
    user_key: str
    tally: str
    first_day: int | None
    second_day: int | None
    definition: int


async def counted_conversations(
    session: AsyncSession, conversation_ids: Iterable[str]
) -> list[CountedConversation]:
    row = CountedConversationRow
    rows = await plain_rows(
        session,
        select(
            row.conversation_id,
            row.submission_id,
            row.competition,
            row.user_key,
            row.tally,
            row.first_day,
            row.second_day,
            row.definition,
        ).where(among(session, row.conversation_id, conversation_ids)),
    )
    return [CountedConversation(*found) for found in rows]


async def counted_conversations_of_submission(
    session: AsyncSession, submission_id: str
) -> Sequence[CountedConversationRow]:
    statement = select(CountedConversationRow).where(
        CountedConversationRow.submission_id == submission_id
    )
    return (await session.scalars(statement)).all()


async def drop_counted_conversations(
    session: AsyncSession, conversation_ids: Iterable[str]
) -> None:
    await session.execute(
        delete(CountedConversationRow).where(
            among(session, CountedConversationRow.conversation_id, conversation_ids)
        )
    )


async def days(session: AsyncSession, keys: Iterable[VisitKey]) -> dict[VisitKey, list[int]]:
    """Return the first two days of each conversation that a user had with a submission."""
    row = CountedConversationRow
    columns = (row.user_key, row.competition, row.submission_id)
    statement = select(*columns, row.first_day, row.second_day).where(
        among_rows(session, columns, keys)
    )
    found: dict[VisitKey, list[int]] = {}
    for user, competition, submission, first, second in await plain_rows(session, statement):
        known = found.setdefault((user, competition, submission), [])
        known.extend(day for day in (first, second) if day is not None)
    return found


async def visits(
    session: AsyncSession, keys: Iterable[VisitKey]
) -> Sequence[SqlRow[str, str, str, int, bool]]:
    """Return user, competition, submission, first day and whether the user returned, as plain rows since they are many."""
    row = VisitRow
    columns = (row.user_key, row.competition, row.submission_id)
    return await plain_rows(
        session,
        select(*columns, row.first_day, row.has_returned).where(among_rows(session, columns, keys)),
    )


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
) -> Sequence[SqlRow[str, str, str, bool, bool | None]]:
    """Return user, competition, submission, the latest and the first thumb, as plain rows since they are many."""
    row = VoteRow
    return await plain_rows(
        session,
        select(row.user_key, row.competition, row.submission_id, row.thumbs_up, row.first_up).where(
            among(session, row.user_key, user_keys)
        ),
    )


async def withdrawn_votes(
    session: AsyncSession, user_keys: Iterable[str]
) -> Sequence[SqlRow[str, str, str, bool]]:
    """Return user, competition, submission and first thumb of the votes that are withdrawn."""
    row = WithdrawnVoteRow
    return await plain_rows(
        session,
        select(row.user_key, row.competition, row.submission_id, row.first_up).where(
            among(session, row.user_key, user_keys)
        ),
    )


async def drop_votes(
    session: AsyncSession,
    key: UserKey,
    submissions: Iterable[str],
    table: type[VoteRow | WithdrawnVoteRow] = VoteRow,
) -> None:
    competition, user_key = key
    for submission in submissions:
        await session.execute(
            delete(table).where(
                table.user_key == user_key,
                table.competition == competition,
                table.submission_id == submission,
            )
        )


async def votes_of_submission(session: AsyncSession, submission_id: str) -> Sequence[VoteRow]:
    statement = select(VoteRow).where(VoteRow.submission_id == submission_id)
    return (await session.scalars(statement)).all()


async def withdrawn_votes_of_submission(
    session: AsyncSession, submission_id: str
) -> Sequence[WithdrawnVoteRow]:
    row = WithdrawnVoteRow
    return (await session.scalars(select(row).where(row.submission_id == submission_id))).all()


async def votes_in(session: AsyncSession, competition: str) -> Sequence[tuple[str, str, bool]]:
    """Return user, submission and thumbs up of every first vote in a competition."""
    first = func.coalesce(VoteRow.first_up, VoteRow.thumbs_up)
    rows = await plain_rows(
        session,
        select(VoteRow.user_key, VoteRow.submission_id, first).where(
            VoteRow.competition == competition
        ),
    )
    row = WithdrawnVoteRow
    withdrawn = await plain_rows(
        session,
        select(row.user_key, row.submission_id, row.first_up).where(row.competition == competition),
    )
    return [
        (user, submission, first_up)
        for found in (rows, withdrawn)
        for user, submission, first_up in found
    ]


async def votes_by_breadth(
    session: AsyncSession, competition: str
) -> list[tuple[str, bool, int, int]]:
    """Return submission, whether its users voted on others too, thumbs up and votes."""
    row = VoteRow
    ballots = (
        select(row.user_key, func.count().label("votes"))
        .where(row.competition == competition)
        .group_by(row.user_key)
        .subquery()
    )
    is_broad = ballots.c.votes > literal_column("1")  # not a parameter: it has to be the same twice
    rows = await session.execute(
        select(
            row.submission_id,
            is_broad,
            func.sum(case((row.thumbs_up, 1), else_=0)),
            func.count(),
        )
        .join(ballots, ballots.c.user_key == row.user_key)
        .where(row.competition == competition)
        .group_by(row.submission_id, is_broad)
    )
    return [(name, bool(several), int(up), int(total)) for name, several, up, total in rows]


async def counted_windows(session: AsyncSession) -> dict[str, CountedWindowRow]:
    rows = await session.scalars(select(CountedWindowRow))
    return {row.competition: row for row in rows}


async def forget_users(session: AsyncSession, user_keys: Iterable[str]) -> set[str]:
    """Delete every row that names these users, and return the submissions that the rows were about."""
    users, touched = list(user_keys), set()
    for table in (CountedConversationRow, VoteRow, WithdrawnVoteRow, VisitRow):
        is_theirs = among(session, table.user_key, users)
        touched |= set(await session.scalars(select(table.submission_id).where(is_theirs)))
        await session.execute(delete(table).where(is_theirs))
    await session.execute(
        delete(CorrectionRow).where(among(session, CorrectionRow.user_key, users))
    )
    return touched
