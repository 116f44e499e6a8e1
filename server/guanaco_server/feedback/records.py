"""Reads ratings for the leaderboard: raw, in bulk, and each new one once.

A rating is new until it ``is_counted``. So a rating that commits late is found as soon as it is visible, whatever was
counted before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    ScalarSelect,
    Select,
    Subquery,
    case,
    func,
    null,
    select,
    text,
    true,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from guanaco_server.chat.conversations.records import user_id_of, user_key
from guanaco_server.database.bulk import plain_rows
from guanaco_server.database.database import among
from guanaco_server.feedback import queries
from guanaco_server.feedback.tables import FeedbackRow, RatingChangeRow
from guanaco_server.statistics.votes import VoteCount


class RecordedRating(NamedTuple):
    """A rating, as a plain row since they are many; ``account_id`` is the account of the backend that had the conversation.

    ``first_up`` is the thumb as it was given, ``thumbs_up`` what it was changed to; ``given_up`` is None if it was never changed.
    One that was withdrawn is no rating any more, but stays a first vote.
    """

    id: str
    conversation_id: str
    submission_id: str
    competition: str
    user_id: str
    account_id: str
    thumbs_up: bool
    at: datetime
    is_counted: bool = False
    given_up: bool | None = None
    is_withdrawn: bool = False

    @property
    def first_up(self) -> bool:
        return self.thumbs_up if self.given_up is None else self.given_up

    @property
    def user_key(self) -> str:
        return user_key(self.account_id, self.user_id)


async def withdrawn_by_users(
    session: AsyncSession, user_keys: Collection[str]
) -> list[RecordedRating]:
    """Return the ratings that these users have withdrawn."""
    ids = {user_id_of(key) for key in user_keys}
    found = await _withdrawn(session, among(session, RatingChangeRow.user_id, ids))
    return [rating for rating in found if rating.user_key in user_keys]


async def withdrawn_of_submission(
    session: AsyncSession,
    submission_id: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[RecordedRating]:
    """Return a submission's withdrawn ratings that were given from ``since`` until before ``until``."""
    row = RatingChangeRow
    conditions = [row.submission_id == submission_id]
    if since is not None:
        conditions.append(row.given_at >= since)
    if until is not None:
        conditions.append(row.given_at < until)
    return await _withdrawn(session, *conditions)


async def withdrawn_in(session: AsyncSession, competition: str) -> list[RecordedRating]:
    return await _withdrawn(session, RatingChangeRow.competition == competition)


async def frequent_users(session: AsyncSession, competition: str, ratings: int) -> set[str]:
    """Return the users who gave at least ``ratings`` ratings in a competition."""
    row = FeedbackRow
    rows = await session.execute(
        select(row.account_id, row.user_id)
        .where(row.competition == competition)
        .group_by(row.account_id, row.user_id)
        .having(func.count() >= ratings)
    )
    return {user_key(account_id, user_id) for account_id, user_id in rows}


async def uncounted(session: AsyncSession, limit: int) -> list[RecordedRating]:
    """Return ratings that are not counted, the oldest first, so that in a backlog none waits for ever."""
    statement = (
        _ratings()
        .where(
            text("NOT feedback.is_counted")
        )  # spelled like the condition of its index; IS FALSE would not use it
        .order_by(FeedbackRow.created_at)
        .limit(limit)
    )
    return await _read(session, statement)


async def of_submission(session: AsyncSession, submission_id: str) -> list[RecordedRating]:
    return await _read(session, _ratings().where(FeedbackRow.submission_id == submission_id))


async def of_users(session: AsyncSession, user_keys: Collection[str]) -> list[RecordedRating]:
    """Return all ratings that these users gave."""
    ids = {user_id_of(key) for key in user_keys}
    found = await _read(session, _ratings().where(among(session, FeedbackRow.user_id, ids)))
    return [rating for rating in found if rating.user_key in user_keys]


async def count_erasures(session: AsyncSession, since: datetime) -> int:
    """Count the erasures of users and the deleted conversations since then, of the whole platform."""
    return await queries.count_erasures(session, since)


async def of_competition(session: AsyncSession, competition: str) -> list[RecordedRating]:
    return await _read(session, _ratings().where(FeedbackRow.competition == competition))


async def within(
    session: AsyncSession, submission_id: str, since: datetime, until: datetime
) -> list[RecordedRating]:
    """Return a submission's ratings from ``since`` until before ``until``."""
    statement = _ratings().where(
        FeedbackRow.submission_id == submission_id,
        FeedbackRow.created_at >= since,
        FeedbackRow.created_at < until,
    )
    return await _read(session, statement)


async def given_since(
    session: AsyncSession, submission_id: str, since: datetime
) -> list[RecordedRating]:
    """Return a submission's ratings since then, the oldest first."""
    statement = (
        _ratings()
        .where(FeedbackRow.submission_id == submission_id, FeedbackRow.created_at >= since)
        .order_by(FeedbackRow.created_at, FeedbackRow.id)
    )
    return await _read(session, statement)


async def counts(session: AsyncSession, submission_ids: Iterable[str]) -> dict[str, int]:
    """Count the ratings by submission. Submissions without a rating are absent."""
    rows = await session.execute(
        select(FeedbackRow.submission_id, func.count())
        .where(among(session, FeedbackRow.submission_id, submission_ids))
        .group_by(FeedbackRow.submission_id)
    )
    return {submission_id: count for submission_id, count in rows}


async def votes_between(
    session: AsyncSession,
    competition: str,
    since: datetime,
    until: datetime | None,
    left_out: Select[str],
) -> Sequence[Row[str, int, int]]:
    """Return submission, thumbs up and thumbs down of each user's latest rating in time that is not left out."""
    row = FeedbackRow
    place = (
        func.row_number()
        .over(
            partition_by=(row.submission_id, row.account_id, row.user_id),
            order_by=(row.created_at.desc(), row.id.desc()),
        )
        .label("place")
    )
    rated = select(row.submission_id, row.thumbs_up, place).where(
        row.competition == competition, row.created_at >= since, row.id.not_in(left_out)
    )
    if until is not None:
        rated = rated.where(row.created_at < until)
    latest = rated.subquery()
    up = func.sum(case((latest.c.thumbs_up, 1), else_=0))
    down = func.sum(case((latest.c.thumbs_up, 0), else_=1))
    rows = await session.execute(
        select(latest.c.submission_id, up, down)
        .where(latest.c.place == 1)
        .group_by(latest.c.submission_id)
    )
    return rows.all()


async def by_id(session: AsyncSession, feedback_id: str) -> RecordedRating | None:
    found = await _read(session, _ratings().where(FeedbackRow.id == feedback_id))
    return found[0] if found else None


async def rated_at(session: AsyncSession, conversation_id: str) -> datetime | None:
    """Return when a conversation was rated; None without a rating."""
    return await session.scalar(
        select(FeedbackRow.created_at).where(FeedbackRow.conversation_id == conversation_id)
    )


async def rated(session: AsyncSession, conversation_ids: Iterable[str]) -> set[str]:
    """Return which of these conversations have a rating."""
    statement = select(FeedbackRow.conversation_id).where(
        among(session, FeedbackRow.conversation_id, conversation_ids)
    )
    return set(await session.scalars(statement))


async def thumbs(
    session: AsyncSession, conversation_ids: Iterable[str], left_out: Select[str]
) -> dict[str, bool]:
    """Return the thumbs of those of these conversations whose rating is not left out."""
    rows = await session.execute(
        select(FeedbackRow.conversation_id, FeedbackRow.thumbs_up).where(
            among(session, FeedbackRow.conversation_id, conversation_ids),
            FeedbackRow.id.not_in(left_out),
        )
    )
    return {conversation: thumbs_up for conversation, thumbs_up in rows}


async def note_counted(session: AsyncSession, ids: Sequence[str]) -> None:
    await session.execute(
        update(FeedbackRow)
        .where(among(session, FeedbackRow.id, ids))
        .values(is_counted=True)
        .execution_options(synchronize_session=False)
    )


async def _withdrawn(
    session: AsyncSession, *conditions: ColumnElement[bool]
) -> list[RecordedRating]:
    row = RatingChangeRow
    given = _thumb_given(row.feedback_id)
    rows = await session.execute(
        select(
            row.feedback_id,
            row.conversation_id,
            row.submission_id,
            row.competition,
            row.user_id,
            row.account_id,
            row.thumbs_up,
            row.given_at,
            true(),
            given,
            true(),
        ).where(row.now_up.is_(None), row.user_id.is_not(None), *conditions)
    )
    return [RecordedRating(*one) for one in rows]


def _ratings() -> Select[str, str, str, str, str, str, bool, datetime, bool, bool | None]:
    return select(
        FeedbackRow.id,
        FeedbackRow.conversation_id,
        FeedbackRow.submission_id,
        FeedbackRow.competition,
        FeedbackRow.user_id,
        FeedbackRow.account_id,
        FeedbackRow.thumbs_up,
        FeedbackRow.created_at,
        FeedbackRow.is_counted,
        _given_up(),
    )


def _given_up() -> ColumnElement[bool | None]:
    """Return the thumb before the first change of a rating that was changed."""
    first = _thumb_given(FeedbackRow.id)
    return case((FeedbackRow.changed_at.is_not(None), first), else_=null())


def _thumb_given(feedback_id: InstrumentedAttribute[str]) -> ScalarSelect[Any]:
    """Return the thumb before the first change of a rating."""
    change = aliased(RatingChangeRow)
    return (
        select(change.thumbs_up)
        .where(change.feedback_id == feedback_id)
        .order_by(change.number)
        .limit(1)
        .scalar_subquery()
    )


async def _read(
    session: AsyncSession,
    statement: Select[str, str, str, str, str, str, bool, datetime, bool, bool | None],
) -> list[RecordedRating]:
    return [RecordedRating(*row) for row in await plain_rows(session, statement)]


async def first_votes_by_variant(
    session: AsyncSession, groups: Subquery, left_out: Select[str]
) -> dict[str, VoteCount]:
    """Count the first rating of each unit that no rule leaves out, as it was given, by variant; one that was withdrawn stays the first."""
    change = RatingChangeRow
    standing = select(
        FeedbackRow.id,
        FeedbackRow.conversation_id,
        func.coalesce(_given_up(), FeedbackRow.thumbs_up).label("first_up"),
        FeedbackRow.created_at.label("at"),
    )
    withdrawn = select(
        change.feedback_id,
        change.conversation_id,
        _thumb_given(change.feedback_id),
        change.given_at,
    ).where(change.now_up.is_(None), change.user_id.is_not(None))
    given = union_all(standing, withdrawn).subquery()
    place = (
        func.row_number()
        .over(partition_by=(groups.c.variant, groups.c.unit), order_by=(given.c.at, given.c.id))
        .label("place")
    )
    first = (
        select(groups.c.variant, given.c.first_up, place)
        .join(groups, groups.c.conversation_id == given.c.conversation_id)
        .where(given.c.id.not_in(left_out))
        .subquery()
    )
    up = func.sum(case((first.c.first_up, 1), else_=0))
    down = func.sum(case((first.c.first_up, 0), else_=1))
    rows = await session.execute(
        select(first.c.variant, up, down).where(first.c.place == 1).group_by(first.c.variant)
    )
    return {variant: VoteCount(up, down) for variant, up, down in rows}


async def first_answers(
    session: AsyncSession, conversation_ids: Collection[str]
) -> dict[str, tuple[datetime, bool]]:
    """Return when each of these conversations was first rated, and whether with thumbs up, whatever was made of the rating since."""
    row, change = FeedbackRow, RatingChangeRow
    rows = await session.execute(
        select(row.conversation_id, row.created_at, row.thumbs_up).where(
            among(session, row.conversation_id, conversation_ids)
        )
    )
    found = {conversation_id: (at, is_up) for conversation_id, at, is_up in rows}
    changes = await session.execute(
        select(change.conversation_id, change.given_at, change.thumbs_up)
        .where(among(session, change.conversation_id, conversation_ids))
        .order_by(change.number.desc())
    )
    return found | {conversation_id: (at, is_up) for conversation_id, at, is_up in changes}


async def copy_again(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    """Copy the ratings of these conversations again, within the transaction that has changed them."""
    await queries.copy_again(session, conversation_ids)
