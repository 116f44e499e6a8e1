"""Every query on ratings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.feedback import FeedbackFilter, Order
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.database import among
from guanaco_server.feedback.conditions import conditions
from guanaco_server.feedback.cursors import Window
from guanaco_server.feedback.tables import FeedbackCopyRow, FeedbackRow

CHANGING = ("bot_name", "length", "words", "document", "pseudonym")


@dataclass(frozen=True)
class NewCopy:
    """A row of ``feedback_copies`` before it has a number."""

    feedback_id: str
    submission_id: str
    pseudonym: str
    bot_name: str
    thumbs_up: bool
    rated_at: datetime
    length: int
    words: str
    document: str


async def insert(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Of several ratings of one conversation the first stays; the ids of those that were inserted."""
    bulk = BulkInsert(session, FeedbackRow, rows)
    statement = bulk.statement.on_conflict_do_nothing(index_elements=["conversation_id"])
    inserted = await session.execute(statement.returning(FeedbackRow.id), bulk.parameters)
    return set(inserted.scalars())


async def latest_times(
    session: AsyncSession, user_ids: Collection[str], since: datetime
) -> dict[str, list[datetime]]:
    """When each backend's user of these ids has rated since then, oldest first; by the user's key."""
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
    """Ratings whose copy is older than the version or missing, those without any first."""
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
    session: AsyncSession, feedback_ids: Sequence[str], version: int
) -> set[str]:
    """Those of the ratings that are still there and that nobody else has copied meanwhile."""
    claimed = await session.scalars(
        update(FeedbackRow)
        .where(FeedbackRow.id.in_(feedback_ids), FeedbackRow.anonymized_by < version)
        .values(anonymized_by=version)
        .returning(FeedbackRow.id)
        .execution_options(synchronize_session=False)
    )
    return set(claimed)


async def write_copies(session: AsyncSession, copies: Sequence[NewCopy]) -> None:
    """A copy that is there already keeps its number."""
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
    window: Window,
    limit: int,
    order: Order = "oldest",
) -> Sequence[Row[int, str]]:
    """Number and document of a submission's copies in a window."""
    number = FeedbackCopyRow.number
    rows = await session.execute(
        select(FeedbackCopyRow.number, FeedbackCopyRow.document)
        .where(
            FeedbackCopyRow.submission_id == submission_id,
            FeedbackCopyRow.number > window.after,
            FeedbackCopyRow.number <= window.until,
            *conditions(wanted),
        )
        .order_by(number if order == "oldest" else number.desc())
        .limit(limit)
    )
    return rows.all()


async def copy_of(session: AsyncSession, feedback_id: str) -> Row[str, str] | None:
    """Submission and document of a rating's copy."""
    rows = await session.execute(
        select(FeedbackCopyRow.submission_id, FeedbackCopyRow.document).where(
            FeedbackCopyRow.feedback_id == feedback_id
        )
    )
    return rows.one_or_none()


async def last_number(session: AsyncSession, submission_id: str) -> int:
    """Of the submission's copies; 0 without any."""
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
    """The ratings' ids; nobody copies them until this transaction ends."""
    return (
        await session.scalars(
            select(FeedbackRow.id)
            .where(FeedbackRow.conversation_id.in_(conversation_ids))
            .with_for_update()
        )
    ).all()


async def delete_ratings(session: AsyncSession, feedback_ids: Sequence[str]) -> None:
    """With their copies."""
    for column in (FeedbackCopyRow.feedback_id, FeedbackRow.id):
        await session.execute(
            delete(column.class_)
            .where(column.in_(feedback_ids))
            .execution_options(synchronize_session=False)
        )
