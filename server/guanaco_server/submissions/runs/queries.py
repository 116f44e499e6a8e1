"""Every query on runs of the pipeline: their stages, events and stress reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import (
    Row,
    String,
    cast,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import EventKind, Level, Stage, Status, StressReport, SubmissionKind
from guanaco_server.submissions.queries import is_prepared_beside
from guanaco_server.submissions.tables import (
    StageRunRow,
    StressReportRow,
    SubmissionEventRow,
    SubmissionRow,
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


async def has_event(session: AsyncSession, submission_id: str, message: str) -> bool:
    """Return whether an event of the submission says this."""
    row = SubmissionEventRow
    found = select(row.seq).where(row.submission_id == submission_id, row.message == message)
    return await session.scalar(found.limit(1)) is not None


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
        or_(SubmissionRow.status.in_(statuses), is_prepared_beside())
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


async def deployed_at(
    session: AsyncSession, at: datetime
) -> list[tuple[str, str, datetime, int | None]]:
    """Return the chat submissions that were deployed at a time, by their events, or as they are now where these say nothing: id, developer, when they were made and their parameters."""
    row, event = SubmissionRow, SubmissionEventRow
    past = (
        row.kind == SubmissionKind.CHAT,
        row.created_at < at,
        row.deleted_at.is_(None) | (row.deleted_at > at),
    )
    entrants = await session.execute(
        select(row.id, row.developer, row.created_at, row.parameter_count, row.status).where(*past)
    )
    latest = (
        select(event.submission_id, func.max(event.seq).label("seq"))
        .join(row, row.id == event.submission_id)
        .where(*past, event.kind == EventKind.STATUS, event.at <= at)
        .group_by(event.submission_id)
        .subquery()
    )
    events = await session.execute(
        select(event.submission_id, event.data).join(
            latest, (latest.c.submission_id == event.submission_id) & (latest.c.seq == event.seq)
        )
    )
    then = {submission_id: data.get("status") for submission_id, data in events}
    return [
        (name, developer, created_at, parameters)
        for name, developer, created_at, parameters, now in entrants
        if then.get(name, now) == Status.DEPLOYED
    ]


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
