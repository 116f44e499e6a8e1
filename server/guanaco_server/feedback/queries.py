"""Every query on ratings and their copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Subquery, delete, func, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from guanaco.feedback import FeedbackFilter, Order
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.database.bulk import BulkInsert, insert_missing
from guanaco_server.database.database import among
from guanaco_server.feedback.cursors import NumberRange
from guanaco_server.feedback.erasures.ledger import ErasureEntry
from guanaco_server.feedback.tables import (
    ErasureRow,
    FeedbackCopyRow,
    FeedbackRow,
    RatingChangeRow,
)

CHANGING = ("bot_name", "length", "words", "document", "pseudonym", "is_quotable")


@dataclass(frozen=True)
class NewCopy:
    """A row of ``feedback_copies`` that has no number yet."""

    feedback_id: str
    submission_id: str
    pseudonym: str
    bot_name: str
    thumbs_up: bool
    rated_at: datetime
    length: int
    words: str
    document: str
    is_quotable: bool


async def insert(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Insert ratings, and return the ids of those inserted. A conversation keeps its first rating."""
    bulk = BulkInsert(session, FeedbackRow, rows)
    statement = bulk.statement.on_conflict_do_nothing(index_elements=["conversation_id"])
    inserted = await session.execute(statement.returning(FeedbackRow.id), bulk.parameters)
    return set(inserted.scalars())


async def latest_times(
    session: AsyncSession, user_ids: Collection[str], since: datetime
) -> dict[str, list[datetime]]:
    """Return when each user with one of these ids has rated since then, oldest first, by the user's key."""
    rows = await session.execute(
        select(FeedbackRow.account_id, FeedbackRow.user_id, FeedbackRow.created_at)
        .where(among(session, FeedbackRow.user_id, user_ids), FeedbackRow.created_at > since)
        .order_by(FeedbackRow.created_at)
    )
    found: dict[str, list[datetime]] = {}
    for account_id, user_id, at in rows:
        found.setdefault(user_key(account_id, user_id), []).append(at)
    return found


async def without_copy(
    session: AsyncSession, version: int, submission_id: str | None, limit: int
) -> Sequence[FeedbackRow]:
    """Return ratings whose copy is missing or of an older version, those without any first."""
    statement = select(FeedbackRow).where(FeedbackRow.anonymized_by < version)
    if submission_id is not None:
        statement = statement.where(FeedbackRow.submission_id == submission_id)
    statement = statement.order_by(
        FeedbackRow.anonymized_by, FeedbackRow.created_at, FeedbackRow.id
    ).limit(limit)
    return (await session.scalars(statement)).all()


async def oldest_without_copy(session: AsyncSession) -> datetime | None:
    return await session.scalar(
        select(func.min(FeedbackRow.created_at)).where(FeedbackRow.anonymized_by == 0)
    )


async def claim_copies(
    session: AsyncSession, revisions: Mapping[str, int], version: int
) -> set[str]:
    """Claim the ratings that are as they were read, by id, and that nobody else has copied meanwhile; return their ids."""
    claimed = await session.scalars(
        update(FeedbackRow)
        .where(
            tuple_(FeedbackRow.id, FeedbackRow.revision).in_(list(revisions.items())),
            FeedbackRow.anonymized_by < version,
        )
        .values(anonymized_by=version)
        .returning(FeedbackRow.id)
        .execution_options(synchronize_session=False)
    )
    return set(claimed)


async def write_copies(session: AsyncSession, copies: Sequence[NewCopy]) -> None:
    """Write copies. One that exists already keeps its number."""
    kind = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = kind.insert(FeedbackCopyRow)
    changed = {name: insert.excluded[name] for name in CHANGING}
    await session.execute(
        insert.on_conflict_do_update(index_elements=["feedback_id"], set_=changed),
        [asdict(copy) for copy in copies],
    )


async def copies(
    session: AsyncSession,
    submission_id: str,
    wanted: FeedbackFilter,
    within: NumberRange,
    limit: int,
    order: Order = "oldest",
) -> Sequence[Row[int, str]]:
    """Return number and document of a submission's copies in a range."""
    number = FeedbackCopyRow.number
    rows = await session.execute(
        select(FeedbackCopyRow.number, FeedbackCopyRow.document)
        .where(
            FeedbackCopyRow.submission_id == submission_id,
            FeedbackCopyRow.number > within.after,
            FeedbackCopyRow.number <= within.until,
            *conditions(wanted),
        )
        .order_by(number if order == "oldest" else number.desc())
        .limit(limit)
    )
    return rows.all()


async def quotable(session: AsyncSession, submission_id: str, limit: int) -> Sequence[str]:
    """Return the documents of a submission's newest copies whose words may be quoted."""
    copy = FeedbackCopyRow
    statement = select(copy.document).where(copy.submission_id == submission_id, copy.is_quotable)
    return (await session.scalars(statement.order_by(copy.number.desc()).limit(limit))).all()


async def hide_copy(session: AsyncSession, feedback_id: str) -> None:
    """Have a rating's copy, if there is one, quoted no longer."""
    copy = FeedbackCopyRow
    await session.execute(
        update(copy).where(copy.feedback_id == feedback_id).values(is_quotable=False)
    )


async def votes(
    session: AsyncSession, submission_id: str, wanted: FeedbackFilter, limit: int
) -> dict[bool, int]:
    """Count the newest ``limit`` copies that fit, by up and down."""
    newest = _newest(FeedbackCopyRow.thumbs_up, submission_id, limit, *conditions(wanted))
    counted = select(newest.c.thumbs_up, func.count()).group_by(newest.c.thumbs_up)
    return {up: count for up, count in await session.execute(counted)}


async def bots(
    session: AsyncSession, submission_id: str, limit: int, within: int
) -> Sequence[Row[str, int]]:
    """Return the bots that most of the newest ``within`` copies are of, with their counts."""
    newest = _newest(FeedbackCopyRow.bot_name, submission_id, within)
    count = func.count()
    ranked = select(newest.c.bot_name, count).group_by(newest.c.bot_name)
    found = await session.execute(ranked.order_by(count.desc(), newest.c.bot_name).limit(limit))
    return found.all()


def _newest(
    column: InstrumentedAttribute[Any],
    submission_id: str,
    limit: int,
    *wanted: ColumnElement[bool],
) -> Subquery:
    """Select one column of a submission's newest copies, so that what counts them is bounded."""
    rows = select(column).where(FeedbackCopyRow.submission_id == submission_id, *wanted)
    return rows.order_by(FeedbackCopyRow.number.desc()).limit(limit).subquery()


async def copy_of(session: AsyncSession, feedback_id: str) -> Row[str, str] | None:
    """Return submission and document of a rating's copy."""
    rows = await session.execute(
        select(FeedbackCopyRow.submission_id, FeedbackCopyRow.document).where(
            FeedbackCopyRow.feedback_id == feedback_id
        )
    )
    return rows.one_or_none()


async def last_number(session: AsyncSession, submission_id: str) -> int:
    """Return the highest number of the submission's copies; 0 without any."""
    last = await session.scalar(
        select(func.max(FeedbackCopyRow.number)).where(
            FeedbackCopyRow.submission_id == submission_id
        )
    )
    return last or 0


async def by_id(session: AsyncSession, feedback_id: str) -> FeedbackRow | None:
    return await session.get(FeedbackRow, feedback_id)


async def lock_of_conversations(
    session: AsyncSession, conversation_ids: Sequence[str]
) -> Sequence[str]:
    """Lock the ratings of these conversations and return their ids; nobody copies them until this transaction ends."""
    return (
        await session.scalars(
            select(FeedbackRow.id)
            .where(FeedbackRow.conversation_id.in_(conversation_ids))
            .with_for_update()
        )
    ).all()


async def rated_submissions(session: AsyncSession, feedback_ids: Sequence[str]) -> set[str]:
    """Return the submissions that these ratings belong to."""
    found = await session.scalars(
        select(FeedbackRow.submission_id).where(FeedbackRow.id.in_(feedback_ids)).distinct()
    )
    return set(found)


async def locked_of_conversation(session: AsyncSession, conversation_id: str) -> FeedbackRow | None:
    """Return a conversation's rating, which nobody else changes or copies until this transaction ends."""
    return (
        await session.scalars(
            select(FeedbackRow)
            .where(FeedbackRow.conversation_id == conversation_id)
            .with_for_update()
        )
    ).one_or_none()


async def of_conversation(session: AsyncSession, conversation_id: str) -> FeedbackRow | None:
    return (
        await session.scalars(
            select(FeedbackRow).where(FeedbackRow.conversation_id == conversation_id)
        )
    ).one_or_none()


async def copy_again(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    """Drop the copies of these conversations' ratings, and have them made again under new numbers."""
    ratings = select(FeedbackRow.id).where(FeedbackRow.conversation_id.in_(conversation_ids))
    await session.execute(
        update(FeedbackRow)
        .where(FeedbackRow.conversation_id.in_(conversation_ids))
        .values(anonymized_by=0, revision=FeedbackRow.revision + 1)
        .execution_options(synchronize_session=False)
    )
    await session.execute(
        delete(FeedbackCopyRow)
        .where(FeedbackCopyRow.feedback_id.in_(ratings))
        .execution_options(synchronize_session=False)
    )


async def changes_of(session: AsyncSession, feedback_id: str) -> Sequence[RatingChangeRow]:
    """Return the changes of a rating, oldest first."""
    return (
        await session.scalars(
            select(RatingChangeRow)
            .where(RatingChangeRow.feedback_id == feedback_id)
            .order_by(RatingChangeRow.number)
        )
    ).all()


async def count_changes(session: AsyncSession, conversation_id: str) -> int:
    """Count the changes of a conversation's ratings, of those that were withdrawn too."""
    row = RatingChangeRow
    statement = select(func.count()).where(row.conversation_id == conversation_id)
    return await session.scalar(statement) or 0


async def delete_changes(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    """Delete the audit trail of these conversations' ratings."""
    await session.execute(
        delete(RatingChangeRow)
        .where(RatingChangeRow.conversation_id.in_(conversation_ids))
        .execution_options(synchronize_session=False)
    )


async def delete_ratings(session: AsyncSession, feedback_ids: Sequence[str]) -> None:
    """Delete ratings with their copies."""
    for column in (FeedbackCopyRow.feedback_id, FeedbackRow.id):
        await session.execute(
            delete(column.class_)
            .where(column.in_(feedback_ids))
            .execution_options(synchronize_session=False)
        )


async def note_erasures(session: AsyncSession, entries: Sequence[ErasureEntry]) -> None:
    await insert_missing(session, ErasureRow, [{"id": one.id, "at": one.at} for one in entries])


async def noted_erasures(session: AsyncSession) -> set[str]:
    return set(await session.scalars(select(ErasureRow.id)))


async def count_erasures(session: AsyncSession, since: datetime) -> int:
    statement = select(func.count()).select_from(ErasureRow).where(ErasureRow.at >= since)
    return await session.scalar(statement) or 0


def conditions(wanted: FeedbackFilter) -> list[ColumnElement[bool]]:
    """Translate a filter into SQL conditions."""
    copy, found = FeedbackCopyRow, list[ColumnElement[bool]]()
    if wanted.rating is not None:
        found.append(copy.thumbs_up.is_(wanted.rating == "up"))
    if wanted.search is not None:
        found.append(copy.words.contains(searchable(wanted.search), autoescape=True))
    if wanted.bot is not None:
        in_any_case = func.lower(copy.bot_name) == wanted.bot.lower()  # SQLite's is for ASCII only
        found.append(or_(copy.bot_name == wanted.bot, in_any_case))
    if wanted.user is not None:
        found.append(copy.pseudonym == wanted.user)
    if wanted.since is not None:
        found.append(copy.rated_at >= wanted.since)
    if wanted.until is not None:
        found.append(copy.rated_at < wanted.until)
    if wanted.min_length is not None:
        found.append(copy.length >= wanted.min_length)
    if wanted.max_length is not None:
        found.append(copy.length <= wanted.max_length)
    return found


def searchable(text: str) -> str:
    """Fold the case of a text for searching. SQLite's LIKE folds only ASCII letters, and PostgreSQL's none."""
    return text.casefold()
