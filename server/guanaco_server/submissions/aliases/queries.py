"""Every query on aliases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    Row,
    delete,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.aliases import AliasName
from guanaco_server.submissions.tables import (
    AliasRow,
    SubmissionRow,
)


async def put(
    session: AsyncSession, account_id: str, repo: str, name: str, submission_id: str, at: datetime
) -> None:
    """Set or move an alias, in one statement."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    meant = {"submission_id": submission_id, "set_at": at}
    await session.execute(
        insert(AliasRow)
        .values(account_id=account_id, repo=repo, name=name, **meant)
        .on_conflict_do_update(index_elements=["account_id", "repo", "name"], set_=meant)
    )


async def drop(session: AsyncSession, submission_id: str, name: str) -> bool:
    """Tell whether the submission had it."""
    dropped = await session.execute(
        delete(AliasRow)
        .where(AliasRow.submission_id == submission_id, AliasRow.name == name)
        .returning(AliasRow.name)
        .execution_options(synchronize_session=False)
    )
    return dropped.first() is not None


async def drop_all(session: AsyncSession, submission_id: str) -> None:
    await session.execute(
        delete(AliasRow)
        .where(AliasRow.submission_id == submission_id)
        .execution_options(synchronize_session=False)
    )


async def named_by(session: AsyncSession, repo: str, name: str) -> dict[str, str]:
    """Return the submission that each account calls so."""
    rows = await session.execute(
        select(AliasRow.account_id, AliasRow.submission_id).where(
            AliasRow.repo == repo, AliasRow.name == name
        )
    )
    return {account_id: submission_id for account_id, submission_id in rows}


async def list_aliases(
    session: AsyncSession, account_id: str | None
) -> Sequence[Row[str, str, str, str, datetime]]:
    """Return an account's aliases by name, everybody's without an account."""
    row = AliasRow
    statement = select(
        row.repo, row.name, row.submission_id, SubmissionRow.developer, row.set_at
    ).join(SubmissionRow, SubmissionRow.id == row.submission_id)
    if account_id is not None:
        statement = statement.where(row.account_id == account_id)
    order = statement.order_by(row.repo, row.name, SubmissionRow.developer)
    return (await session.execute(order)).all()


async def by_submission(session: AsyncSession, account_id: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for repo, name, submission_id, _, _ in await list_aliases(session, account_id):
        found.setdefault(submission_id, []).append(str(AliasName(repo, name)))
    return found


async def of_submission(session: AsyncSession, submission_id: str) -> list[AliasName]:
    rows = await session.execute(
        select(AliasRow.repo, AliasRow.name)
        .where(AliasRow.submission_id == submission_id)
        .order_by(AliasRow.name)
    )
    return [AliasName(repo, name) for repo, name in rows]
