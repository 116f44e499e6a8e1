"""Every query on quotas: the limits of accounts, and what of them is used."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import (
    and_,
    delete,
    func,
    not_,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import Status
from guanaco.sweeps import engine_of
from guanaco_server.submissions.tables import (
    QuotaRow,
    RunStartRow,
    SubmissionRow,
)


async def quota(session: AsyncSession, account_id: str) -> QuotaRow | None:
    return await session.get(QuotaRow, account_id, populate_existing=True)


async def lock_quota(session: AsyncSession, account_id: str) -> QuotaRow:
    """Read the account's row, made if new. The row is locked until this transaction ends."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    await session.execute(
        insert(QuotaRow)
        .values(account_id=account_id)
        .on_conflict_do_update(index_elements=["account_id"], set_={"account_id": account_id})
    )
    row = await quota(session, account_id)
    assert row is not None
    return row


async def run_starts(session: AsyncSession, account_id: str, since: datetime) -> list[datetime]:
    """Return when the account has begun runs since then, the oldest first."""
    statement = select(RunStartRow.at).where(
        RunStartRow.account_id == account_id, RunStartRow.at > since
    )
    return list(await session.scalars(statement.order_by(RunStartRow.at)))


async def add_run_start(
    session: AsyncSession, account_id: str, at: datetime, forget_before: datetime
) -> None:
    await session.execute(
        delete(RunStartRow).where(
            RunStartRow.account_id == account_id, RunStartRow.at <= forget_before
        )
    )
    session.add(RunStartRow(account_id=account_id, at=at))
    await session.flush()


async def count_own(session: AsyncSession, account_id: str, statuses: Collection[Status]) -> int:
    """Count the account's submissions with these statuses; a sweep counts once."""
    each = func.distinct(func.coalesce(SubmissionRow.sweep, SubmissionRow.id))
    statement = select(func.count(each)).where(
        SubmissionRow.account_id == account_id, SubmissionRow.status.in_(statuses)
    )
    return await session.scalar(statement) or 0


async def count_servers(
    session: AsyncSession, account_id: str, statuses: Collection[Status]
) -> int:
    """Count the account's submissions with these statuses; of a sweep, the model servers that its variants need."""
    own = (SubmissionRow.account_id == account_id, SubmissionRow.status.in_(statuses))
    single = select(func.count()).where(*own, SubmissionRow.sweep.is_(None))
    variants = await session.execute(
        select(
            SubmissionRow.sweep,
            SubmissionRow.dtype,
            SubmissionRow.quantization,
            SubmissionRow.params,
        ).where(*own, SubmissionRow.sweep.is_not(None))
    )
    engines = {
        (sweep, engine_of(dtype, quantization, params))
        for sweep, dtype, quantization, params in variants
    }
    return (await session.scalar(single) or 0) + len(engines)


async def ended_artifacts(
    session: AsyncSession, account_id: str, live: Collection[Status]
) -> dict[str, int]:
    """Read the artifacts of the account's submissions without these statuses, with their weights' bytes, the newest first.

    Except those of a commit, its base's too, that a submission of anybody with these statuses uses.
    """
    columns = (
        SubmissionRow.repo,
        SubmissionRow.commit,
        SubmissionRow.base_repo,
        SubmissionRow.base_commit,
    )
    used = set()
    for repo, commit, base_repo, base_commit in await session.execute(
        select(*columns).where(SubmissionRow.status.in_(live))
    ):
        used |= {(repo, commit), (base_repo, base_commit)}
    used.discard((None, None))
    statement = (
        select(SubmissionRow.artifact_key, SubmissionRow.weight_bytes, *columns)
        .where(
            SubmissionRow.account_id == account_id,
            SubmissionRow.status.not_in(live),
            SubmissionRow.artifact_key.is_not(None),
        )
        .order_by(SubmissionRow.updated_at.desc(), SubmissionRow.id.desc())
    )
    found: dict[str, int] = {}
    for key, size, repo, commit, base_repo, base_commit in await session.execute(statement):
        if key is not None and not used & {(repo, commit), (base_repo, base_commit)}:
            found.setdefault(key, size or 0)
    return found


async def artifact_bytes(
    session: AsyncSession,
    account_id: str,
    statuses: Collection[Status],
    but: SubmissionRow | None,
) -> int:
    """Add up the weights of the account's submissions with these statuses; each artifact counts once.

    Except one submission, and those of its sweep that are made into the same artifact.
    """
    artifact = func.coalesce(SubmissionRow.artifact_key, SubmissionRow.sweep, SubmissionRow.id)
    each = (
        select(func.max(SubmissionRow.weight_bytes).label("size"))
        .where(SubmissionRow.account_id == account_id, SubmissionRow.status.in_(statuses))
        .group_by(artifact)
    )
    if but is not None:
        each = each.where(SubmissionRow.id != but.id)
    if but is not None and but.sweep is not None:
        is_same = and_(SubmissionRow.sweep == but.sweep, SubmissionRow.dtype == but.dtype)
        each = each.where(or_(SubmissionRow.sweep.is_(None), not_(is_same)))
    total = await session.scalar(select(func.sum(each.subquery().c.size)))
    return int(total or 0)
