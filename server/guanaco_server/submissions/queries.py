"""Every query on submissions, their stages, events and reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import (
    PIPELINE_STATUSES,
    GenerationParams,
    RolloutPhase,
    Status,
    SubmissionKind,
    last_to_read_hub,
)
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.submissions.tables import (
    HubTokenRow,
    RolloutRow,
    SubmissionNumberRow,
    SubmissionRow,
)


def _may_read_hub(*, is_adapter: bool) -> tuple[Status, ...]:
    last = last_to_read_hub(is_adapter=is_adapter).spec.status
    return PIPELINE_STATUSES[: PIPELINE_STATUSES.index(last) + 1]


MODEL_READS_HUB = _may_read_hub(is_adapter=False)
ADAPTER_READS_HUB = _may_read_hub(is_adapter=True)


async def next_number(session: AsyncSession, slug: str) -> int:
    """Return the next version of a slug, from 1. Two callers never get the same one."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = (
        insert(SubmissionNumberRow)
        .values(slug=slug, last=1)
        .on_conflict_do_update(index_elements=["slug"], set_={"last": SubmissionNumberRow.last + 1})
        .returning(SubmissionNumberRow.last)
    )
    number: int | None = await session.scalar(statement)
    assert number is not None
    return number


async def sealed_hub_token(session: AsyncSession, submission_id: str) -> str | None:
    statement = select(HubTokenRow.sealed).where(HubTokenRow.submission_id == submission_id)
    return await session.scalar(statement)


async def delete_hub_token(session: AsyncSession, submission_id: str) -> None:
    await session.execute(
        delete(HubTokenRow)
        .where(HubTokenRow.submission_id == submission_id)
        .execution_options(synchronize_session=False)
    )


def may_read_the_hub(status: Status, base_repo: str | None) -> bool:
    """Return whether a submission of this status may read its repo again. An adapter is merged where its base's server does not load it."""
    return status in (MODEL_READS_HUB if base_repo is None else ADAPTER_READS_HUB)


async def delete_unneeded_hub_tokens(session: AsyncSession) -> None:
    """Delete those of submissions that read the Hub no more: a version without tokens has moved them on."""
    needing = select(SubmissionRow.id).where(
        or_(
            SubmissionRow.status.in_(MODEL_READS_HUB),
            and_(SubmissionRow.status.in_(ADAPTER_READS_HUB), SubmissionRow.base_repo.is_not(None)),
            is_prepared_beside(),
        )
    )
    await session.execute(
        delete(HubTokenRow)
        .where(HubTokenRow.submission_id.not_in(needing))
        .execution_options(synchronize_session=False)
    )


def is_prepared_beside() -> ColumnElement[bool]:
    """Return whether the submission's run is one beside the version that serves."""
    return exists().where(
        RolloutRow.submission_id == SubmissionRow.id,
        RolloutRow.run == SubmissionRow.run,
        RolloutRow.phase == RolloutPhase.PREPARING,
    )


async def by_id(session: AsyncSession, submission_id: str) -> SubmissionRow | None:
    return await session.get(SubmissionRow, submission_id)


async def by_id_held(session: AsyncSession, submission_id: str) -> SubmissionRow | None:
    """Read the row and keep others from changing it until this transaction ends."""
    return await session.get(
        SubmissionRow, submission_id, with_for_update={"read": True}, populate_existing=True
    )


async def by_id_locked(session: AsyncSession, submission_id: str) -> SubmissionRow | None:
    """Lock the row until this transaction ends."""
    return await session.get(
        SubmissionRow, submission_id, with_for_update=True, populate_existing=True
    )


async def card(session: AsyncSession, submission_id: str) -> StoredCard | None:
    return await session.scalar(select(SubmissionRow.card).where(SubmissionRow.id == submission_id))


async def by_idempotency_key(
    session: AsyncSession, account_id: str, key: str
) -> SubmissionRow | None:
    return await session.scalar(
        select(SubmissionRow).where(
            SubmissionRow.account_id == account_id, SubmissionRow.idempotency_key == key
        )
    )


async def newest_first(
    session: AsyncSession,
    account_id: str | None = None,
    statuses: Sequence[Status] = (),
    text: str = "",
    offset: int = 0,
    limit: int | None = None,
    kind: SubmissionKind | None = None,
) -> Sequence[SubmissionRow]:
    statement = select(SubmissionRow).where(*_chosen(account_id, statuses, text))
    if kind is not None:
        statement = statement.where(SubmissionRow.kind == kind)
    statement = statement.order_by(SubmissionRow.created_at.desc(), SubmissionRow.id.desc())
    return (await session.scalars(statement.offset(offset).limit(limit))).all()


async def count(
    session: AsyncSession, account_id: str | None, statuses: Sequence[Status], text: str
) -> int:
    statement = select(func.count()).where(*_chosen(account_id, statuses, text))
    return await session.scalar(statement.select_from(SubmissionRow)) or 0


def _chosen(
    account_id: str | None, statuses: Sequence[Status], text: str
) -> list[ColumnElement[bool]]:
    chosen: list[ColumnElement[bool]] = [SubmissionRow.deleted_at.is_(None)]
    if account_id is not None:
        chosen.append(SubmissionRow.account_id == account_id)
    if statuses:
        chosen.append(SubmissionRow.status.in_(statuses))
    if text:
        columns = (SubmissionRow.id, SubmissionRow.name, SubmissionRow.developer)
        chosen.append(or_(*(column.icontains(text, autoescape=True) for column in columns)))
    return chosen


async def with_status(
    session: AsyncSession, *statuses: Status, kind: SubmissionKind | None = None
) -> Sequence[SubmissionRow]:
    statement = select(SubmissionRow).where(SubmissionRow.status.in_(statuses))
    if kind is not None:
        statement = statement.where(SubmissionRow.kind == kind)
    return (await session.scalars(statement)).all()


async def count_users(session: AsyncSession, reward: str, *statuses: Status) -> int:
    """Count the submissions that name this reward model and have one of the statuses."""
    statement = select(func.count()).where(
        SubmissionRow.reward == reward, SubmissionRow.status.in_(statuses)
    )
    return await session.scalar(statement) or 0


Version = tuple[Status, int, datetime, int | None]


def version_of(row: SubmissionRow) -> Version:
    """Return what differs after every change of a published submission."""
    return row.status, row.run, row.updated_at, row.prompt_version


async def versions(
    session: AsyncSession, *statuses: Status, kind: SubmissionKind
) -> dict[str, Version]:
    rows = await session.execute(
        select(
            SubmissionRow.id,
            SubmissionRow.status,
            SubmissionRow.run,
            SubmissionRow.updated_at,
            SubmissionRow.prompt_version,
        ).where(SubmissionRow.status.in_(statuses), SubmissionRow.kind == kind)
    )
    return {row.id: (row.status, row.run, row.updated_at, row.prompt_version) for row in rows}


async def by_ids(session: AsyncSession, ids: Sequence[str]) -> Sequence[SubmissionRow]:
    if not ids:
        return ()
    return (await session.scalars(select(SubmissionRow).where(SubmissionRow.id.in_(ids)))).all()


async def briefs(
    session: AsyncSession,
) -> Sequence[
    Row[str, str, str, str, str, Status, datetime, int | None, str | None, str | None, str | None]
]:
    """Read what names each chat submission, without the rest of the row."""
    rows = await session.execute(
        select(
            SubmissionRow.id,
            SubmissionRow.account_id,
            SubmissionRow.developer,
            SubmissionRow.name,
            SubmissionRow.repo,
            SubmissionRow.status,
            SubmissionRow.created_at,
            SubmissionRow.parameter_count,
            SubmissionRow.license,
            SubmissionRow.architecture,
            SubmissionRow.sweep,
        ).where(SubmissionRow.kind == SubmissionKind.CHAT, SubmissionRow.deleted_at.is_(None))
    )
    return rows.all()


async def count_by_status(session: AsyncSession) -> dict[Status, int]:
    statement = select(SubmissionRow.status, func.count()).where(SubmissionRow.deleted_at.is_(None))
    statement = statement.group_by(SubmissionRow.status)
    return {status: count for status, count in await session.execute(statement)}


async def oldest_with_status(session: AsyncSession, status: Status) -> datetime | None:
    """Return since when the submission that has had this status longest has had it."""
    statement = select(func.min(SubmissionRow.updated_at)).where(SubmissionRow.status == status)
    return await session.scalar(statement)


async def artifact_keys(session: AsyncSession, since: datetime) -> set[str]:
    """Read the keys of all submissions, except those that were torn down, or failed or were cancelled before that time."""
    has_ended = SubmissionRow.status.in_((Status.FAILED, Status.CANCELLED))
    keys = await session.scalars(
        select(SubmissionRow.artifact_key).where(
            SubmissionRow.status != Status.TORN_DOWN,
            SubmissionRow.deleted_at.is_(None),
            or_(~has_ended, SubmissionRow.updated_at >= since),
        )
    )
    return {key for key in keys if key is not None}


async def params(
    session: AsyncSession, submission_ids: Collection[str]
) -> dict[str, GenerationParams]:
    rows = await session.execute(
        select(SubmissionRow.id, SubmissionRow.params).where(SubmissionRow.id.in_(submission_ids))
    )
    return {submission_id: found for submission_id, found in rows}


async def statuses(session: AsyncSession, submission_ids: Collection[str]) -> dict[str, Status]:
    rows = await session.execute(
        select(SubmissionRow.id, SubmissionRow.status).where(SubmissionRow.id.in_(submission_ids))
    )
    return {submission_id: status for submission_id, status in rows}


async def developers(
    session: AsyncSession, submission_ids: Collection[str]
) -> dict[str, tuple[str, str]]:
    rows = await session.execute(
        select(SubmissionRow.id, SubmissionRow.account_id, SubmissionRow.developer).where(
            SubmissionRow.id.in_(submission_ids)
        )
    )
    return {submission_id: (account_id, name) for submission_id, account_id, name in rows}


async def status_of(session: AsyncSession, submission_id: str) -> Status | None:
    return await session.scalar(
        select(SubmissionRow.status).where(SubmissionRow.id == submission_id)
    )


async def accounts_by_status(
    session: AsyncSession, *statuses: Status
) -> Sequence[Row[str, str, Status, SubmissionKind, str | None, GenerationParams]]:
    """Id, account, status, kind, reward model and parameters, without the rest of the rows."""
    statement = select(
        SubmissionRow.id,
        SubmissionRow.account_id,
        SubmissionRow.status,
        SubmissionRow.kind,
        SubmissionRow.reward,
        SubmissionRow.params,
    )
    return (await session.execute(statement.where(SubmissionRow.status.in_(statuses)))).all()
