"""Every query on stored prompts, their versions and labels."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Text, cast, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.submissions.tables import (
    StoredPromptLabelRow,
    StoredPromptRow,
    StoredPromptVersionRow,
    SubmissionRow,
)

VERSIONS_SHOWN = 100


async def prompt(
    session: AsyncSession, account_id: str, name: str, *, is_locked: bool = False
) -> StoredPromptRow | None:
    return await session.get(
        StoredPromptRow, (account_id, name), with_for_update=is_locked, populate_existing=True
    )


async def prompts(session: AsyncSession, account_id: str) -> Sequence[StoredPromptRow]:
    statement = select(StoredPromptRow).where(StoredPromptRow.account_id == account_id)
    return (await session.scalars(statement.order_by(StoredPromptRow.name))).all()


async def count(session: AsyncSession, account_id: str) -> int:
    """Count the prompts of an account."""
    statement = select(func.count()).where(StoredPromptRow.account_id == account_id)
    return await session.scalar(statement) or 0


async def size(session: AsyncSession, account_id: str) -> int:
    """Return how many characters all versions of an account's prompts have, as they are stored."""
    row = StoredPromptVersionRow
    length = func.length(cast(row.prompt, Text))
    statement = select(func.coalesce(func.sum(length), 0)).where(row.account_id == account_id)
    return int(await session.scalar(statement) or 0)


async def version(
    session: AsyncSession, account_id: str, name: str, number: int
) -> StoredPromptVersionRow | None:
    return await session.get(StoredPromptVersionRow, (account_id, name, number))


async def versions(
    session: AsyncSession, account_id: str, name: str
) -> Sequence[StoredPromptVersionRow]:
    """Read the newest versions, newest first."""
    row = StoredPromptVersionRow
    statement = select(row).where(row.account_id == account_id, row.name == name)
    statement = statement.order_by(row.number.desc()).limit(VERSIONS_SHOWN)
    return (await session.scalars(statement)).all()


async def label(
    session: AsyncSession, account_id: str, name: str, label: str
) -> StoredPromptLabelRow | None:
    return await session.get(StoredPromptLabelRow, (account_id, name, label))


async def labels(
    session: AsyncSession, account_id: str, name: str | None = None
) -> Sequence[StoredPromptLabelRow]:
    """Read the labels of one prompt, or of all of an account."""
    row = StoredPromptLabelRow
    statement = select(row).where(row.account_id == account_id)
    if name is not None:
        statement = statement.where(row.name == name)
    return (await session.scalars(statement.order_by(row.name, row.label))).all()


async def followers(
    session: AsyncSession, account_id: str, reference: str, *, is_locked: bool = False
) -> Sequence[SubmissionRow]:
    """Read the submissions that name a label, but for those that were deleted."""
    row = SubmissionRow
    statement = select(row).where(
        row.account_id == account_id, row.prompt == reference, row.deleted_at.is_(None)
    )
    statement = statement.order_by(row.id)
    if is_locked:
        statement = statement.with_for_update().execution_options(populate_existing=True)
    return (await session.scalars(statement)).all()


async def followers_by_label(session: AsyncSession, account_id: str) -> dict[str, list[str]]:
    """Read the ids of the submissions that name a stored prompt, by what they name."""
    row = SubmissionRow
    found: dict[str, list[str]] = {}
    rows = await session.execute(
        select(row.prompt, row.id)
        .where(row.account_id == account_id, row.prompt.is_not(None), row.deleted_at.is_(None))
        .order_by(row.id)
    )
    for reference, submission_id in rows:
        found.setdefault(reference or "", []).append(submission_id)
    return found


async def drop_label(session: AsyncSession, account_id: str, name: str, label: str) -> None:
    row = StoredPromptLabelRow
    await session.execute(
        delete(row).where(row.account_id == account_id, row.name == name, row.label == label)
    )


async def drop_prompt(session: AsyncSession, account_id: str, name: str) -> None:
    for row in (StoredPromptLabelRow, StoredPromptVersionRow, StoredPromptRow):
        await session.execute(delete(row).where(row.account_id == account_id, row.name == name))
