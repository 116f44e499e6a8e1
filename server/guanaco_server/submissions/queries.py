"""Every query on submissions, their stages, events and reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Row,
    String,
    and_,
    cast,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.aliases import AliasName
from guanaco.submissions import (
    EventKind,
    GenerationParams,
    Level,
    RolloutPhase,
    Stage,
    Status,
    StressReport,
    SubmissionKind,
)
from guanaco_server.artifacts.checking.model_card import StoredCard
from guanaco_server.submissions.tables import (
    AliasRow,
    HubTokenRow,
    QuotaRow,
    RolloutRow,
    RunStartRow,
    StageRunRow,
    StressReportRow,
    SubmissionEventRow,
    SubmissionNumberRow,
    SubmissionRow,
    SweepRow,
)

MAX_SWEEPS = 100  # in a list
READS_THE_HUB = (Status.QUEUED, Status.CHECKING, Status.SERIALIZING)


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


async def delete_unneeded_hub_tokens(session: AsyncSession) -> None:
    """Delete those of submissions that are past serializing: a version without tokens has moved them on."""
    needing = select(SubmissionRow.id).where(
        or_(SubmissionRow.status.in_(READS_THE_HUB), _is_prepared_beside())
    )
    await session.execute(
        delete(HubTokenRow)
        .where(HubTokenRow.submission_id.not_in(needing))
        .execution_options(synchronize_session=False)
    )


def _is_prepared_beside() -> ColumnElement[bool]:
    """Return whether the submission's run is one beside the version that serves."""
    return exists().where(
        RolloutRow.submission_id == SubmissionRow.id,
        RolloutRow.run == SubmissionRow.run,
        RolloutRow.phase == RolloutPhase.PREPARING,
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


async def sweep(session: AsyncSession, sweep_id: str) -> SweepRow | None:
    return await session.get(SweepRow, sweep_id)


async def sweep_by_key(session: AsyncSession, account_id: str, key: str) -> SweepRow | None:
    return await session.scalar(
        select(SweepRow).where(SweepRow.account_id == account_id, SweepRow.idempotency_key == key)
    )


async def sweeps(session: AsyncSession, account_id: str | None) -> Sequence[SweepRow]:
    """Read the newest sweeps of an account, or of all."""
    statement = select(SweepRow).order_by(SweepRow.created_at.desc(), SweepRow.id.desc())
    if account_id is not None:
        statement = statement.where(SweepRow.account_id == account_id)
    return (await session.scalars(statement.limit(MAX_SWEEPS))).all()


async def of_sweeps(session: AsyncSession, sweep_ids: Collection[str]) -> Sequence[SubmissionRow]:
    """Read the submissions of these sweeps, each sweep's in its order."""
    if not sweep_ids:
        return []
    statement = select(SubmissionRow).where(
        SubmissionRow.sweep.in_(sweep_ids), SubmissionRow.deleted_at.is_(None)
    )
    return (await session.scalars(statement.order_by(SubmissionRow.sweep_place))).all()


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


async def put_alias(
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


async def drop_alias(session: AsyncSession, submission_id: str, name: str) -> bool:
    """Tell whether the submission had it."""
    dropped = await session.execute(
        delete(AliasRow)
        .where(AliasRow.submission_id == submission_id, AliasRow.name == name)
        .returning(AliasRow.name)
        .execution_options(synchronize_session=False)
    )
    return dropped.first() is not None


async def drop_aliases(session: AsyncSession, submission_id: str) -> None:
    await session.execute(
        delete(AliasRow)
        .where(AliasRow.submission_id == submission_id)
        .execution_options(synchronize_session=False)
    )


async def named_by(session: AsyncSession, repo: str, name: str) -> dict[str, str]:
    """The submission that each account calls so."""
    rows = await session.execute(
        select(AliasRow.account_id, AliasRow.submission_id).where(
            AliasRow.repo == repo, AliasRow.name == name
        )
    )
    return {account_id: submission_id for account_id, submission_id in rows}


async def aliases(
    session: AsyncSession, account_id: str | None
) -> Sequence[Row[str, str, str, str, datetime]]:
    """An account's aliases by name, everybody's without an account."""
    row = AliasRow
    statement = select(
        row.repo, row.name, row.submission_id, SubmissionRow.developer, row.set_at
    ).join(SubmissionRow, SubmissionRow.id == row.submission_id)
    if account_id is not None:
        statement = statement.where(row.account_id == account_id)
    order = statement.order_by(row.repo, row.name, SubmissionRow.developer)
    return (await session.execute(order)).all()


async def aliases_by_submission(
    session: AsyncSession, account_id: str | None
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for repo, name, submission_id, _, _ in await aliases(session, account_id):
        found.setdefault(submission_id, []).append(str(AliasName(repo, name)))
    return found


async def aliases_of(session: AsyncSession, submission_id: str) -> list[AliasName]:
    rows = await session.execute(
        select(AliasRow.repo, AliasRow.name)
        .where(AliasRow.submission_id == submission_id)
        .order_by(AliasRow.name)
    )
    return [AliasName(repo, name) for repo, name in rows]


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
    """Another one after every change of a published submission."""
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


async def stage_run(
    session: AsyncSession, submission_id: str, run: int, stage: Stage
) -> StageRunRow | None:
    return await session.get(StageRunRow, (submission_id, run, stage))


async def open_stage_run(session: AsyncSession, submission_id: str, run: int) -> StageRunRow | None:
    """Read the stage of a run that has begun and not ended."""
    is_open = StageRunRow.outcome.is_(None)
    return await session.scalar(
        select(StageRunRow)
        .where(StageRunRow.submission_id == submission_id, StageRunRow.run == run, is_open)
        .order_by(StageRunRow.started_at.desc())
        .limit(1)
    )


async def unfinished_runs(
    session: AsyncSession, statuses: Collection[Status]
) -> Sequence[Row[SubmissionRow, str | None]]:
    """Each submission with one of the statuses, or with a run beside, oldest first, and what the open stage of its run waits for."""
    waits = (
        select(func.max(StageRunRow.waits_for))
        .where(
            StageRunRow.submission_id == SubmissionRow.id,
            StageRunRow.run == SubmissionRow.run,
            StageRunRow.outcome.is_(None),
        )
        .scalar_subquery()
    )
    statement = select(SubmissionRow, waits).where(
        or_(SubmissionRow.status.in_(statuses), _is_prepared_beside())
    )
    return (await session.execute(statement.order_by(SubmissionRow.updated_at))).all()


async def stage_runs(session: AsyncSession, submission_id: str) -> Sequence[StageRunRow]:
    return (
        await session.scalars(
            select(StageRunRow)
            .where(StageRunRow.submission_id == submission_id)
            .order_by(StageRunRow.run, StageRunRow.started_at)
        )
    ).all()


async def events_after(
    session: AsyncSession, submission_id: str, seq: int, limit: int
) -> Sequence[SubmissionEventRow]:
    return (
        await session.scalars(
            select(SubmissionEventRow)
            .where(SubmissionEventRow.submission_id == submission_id, SubmissionEventRow.seq > seq)
            .order_by(SubmissionEventRow.seq)
            .limit(limit)
        )
    ).all()


async def event_counts(
    session: AsyncSession, account_ids: Collection[str]
) -> Sequence[Row[str, str, int]]:
    """Id, account and number of events of each of the accounts' submissions."""
    statement = select(SubmissionRow.id, SubmissionRow.account_id, SubmissionRow.event_count)
    return (await session.execute(statement.where(SubmissionRow.account_id.in_(account_ids)))).all()


async def status_events(session: AsyncSession, submission_id: str) -> Sequence[SubmissionEventRow]:
    row = SubmissionEventRow
    statement = select(row).where(row.submission_id == submission_id)
    statement = statement.where(row.kind == EventKind.STATUS).order_by(row.seq)
    return (await session.scalars(statement)).all()


async def has_been(session: AsyncSession, submission_id: str, status: Status) -> bool:
    """Return whether the submission ever had the status."""
    events = await status_events(session, submission_id)
    return any(event.data.get("status") == status for event in events)


async def last_events(
    session: AsyncSession,
    submission_id: str,
    limit: int,
    before: int | None = None,
    hidden_levels: Sequence[Level] = (),
    text: str = "",
) -> Sequence[SubmissionEventRow]:
    """Newest first; ``text`` stands in the message or names the stage, in either case of letters."""
    row = SubmissionEventRow
    statement = select(row).where(row.submission_id == submission_id)
    if before is not None:
        statement = statement.where(row.seq < before)
    if hidden_levels:
        statement = statement.where(row.level.not_in(hidden_levels))
    if text:
        is_found = row.message.icontains(text, autoescape=True)
        statement = statement.where(
            or_(is_found, cast(row.stage, String).icontains(text, autoescape=True))
        )
    ordered = statement.order_by(row.seq.desc()).limit(limit)
    return (await session.scalars(ordered)).all()


async def reports_of_runs(
    session: AsyncSession, runs: Sequence[tuple[str, int]]
) -> list[tuple[SubmissionRow, StressReport]]:
    """Read the stress reports of these runs, each with its submission."""
    is_one = tuple_(StressReportRow.submission_id, StressReportRow.run).in_(runs)
    found = await session.execute(
        select(SubmissionRow, StressReportRow.report)
        .join(StressReportRow, StressReportRow.submission_id == SubmissionRow.id)
        .where(is_one)
    )
    return [(row, report) for row, report in found]


async def latest_report(session: AsyncSession, submission_id: str) -> StressReportRow | None:
    return await session.scalar(
        select(StressReportRow)
        .where(StressReportRow.submission_id == submission_id)
        .order_by(StressReportRow.run.desc())
        .limit(1)
    )


async def accounts_by_status(
    session: AsyncSession, *statuses: Status
) -> Sequence[Row[str, str, Status, SubmissionKind, str | None]]:
    """Id, account, status, kind and reward model, without the rest of the rows."""
    statement = select(
        SubmissionRow.id,
        SubmissionRow.account_id,
        SubmissionRow.status,
        SubmissionRow.kind,
        SubmissionRow.reward,
    )
    return (await session.execute(statement.where(SubmissionRow.status.in_(statuses)))).all()
