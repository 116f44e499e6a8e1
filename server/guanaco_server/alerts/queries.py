"""Every query on service counts, alerts and their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.webhooks import DeliveryState
from guanaco_server.alerts.tables import AlertMessageRow, AlertRow, ServiceCountRow
from guanaco_server.database.bulk import BulkInsert
from guanaco_server.database.database import was_changed


async def add_counts(session: AsyncSession, at: datetime, counts: Mapping[str, int]) -> None:
    """Add to the counts of a period. All processes add in the same order, so that none waits for another in a circle."""
    rows = [
        {"measure": measure, "at": at, "count": count} for measure, count in sorted(counts.items())
    ]
    bulk = BulkInsert(session, ServiceCountRow, rows)
    together = ServiceCountRow.count + bulk.statement.excluded["count"]
    statement = bulk.statement.on_conflict_do_update(
        index_elements=["measure", "at"], set_={"count": together}
    )
    await session.execute(statement, bulk.parameters)


async def counts_between(
    session: AsyncSession, since: datetime, until: datetime, measures: Sequence[str]
) -> dict[str, int]:
    """Return the sums over the periods that begin within that time. Naming the measures lets the index find the periods."""
    row = ServiceCountRow
    statement = (
        select(row.measure, func.sum(row.count))
        .where(row.measure.in_(measures), row.at >= since, row.at < until)
        .group_by(row.measure)
    )
    return {measure: int(count) for measure, count in await session.execute(statement)}


async def counts_by_slot(
    session: AsyncSession, edges: Sequence[datetime], measures: Sequence[str]
) -> dict[tuple[int, str], int]:
    """Return the sums within each slot, from one edge to the next, by the slot's number and the measure."""
    row = ServiceCountRow
    slot = case(*((row.at < end, number) for number, end in enumerate(edges[1:])))
    statement = (
        select(slot, row.measure, func.sum(row.count))
        .where(row.measure.in_(measures), row.at >= edges[0], row.at < edges[-1])
        .group_by(slot, row.measure)
    )
    found = await session.execute(statement)
    return {(number, measure): int(count) for number, measure, count in found}


async def forget_counts(session: AsyncSession, before: datetime) -> None:
    await session.execute(delete(ServiceCountRow).where(ServiceCountRow.at < before))


async def firing(session: AsyncSession) -> Sequence[AlertRow]:
    statement = select(AlertRow).where(AlertRow.ended_at.is_(None))
    return (await session.scalars(statement.order_by(AlertRow.id.desc()))).all()


async def ended_since(session: AsyncSession, since: datetime) -> Sequence[AlertRow]:
    statement = select(AlertRow).where(AlertRow.ended_at >= since)
    return (await session.scalars(statement.order_by(AlertRow.id.desc()))).all()


async def newest_messages(session: AsyncSession, limit: int) -> Sequence[AlertMessageRow]:
    statement = select(AlertMessageRow).order_by(AlertMessageRow.id.desc()).limit(limit)
    return (await session.scalars(statement)).all()


async def pending(session: AsyncSession) -> Sequence[AlertMessageRow]:
    """Return the messages that are not sent yet, oldest first."""
    statement = select(AlertMessageRow).where(AlertMessageRow.state == DeliveryState.PENDING)
    return (await session.scalars(statement.order_by(AlertMessageRow.id))).all()


async def claim(session: AsyncSession, row: AlertMessageRow, until: datetime) -> bool:
    """Lease a due message until then; False if another process has it."""
    statement = (
        update(AlertMessageRow)
        .where(
            AlertMessageRow.id == row.id,
            AlertMessageRow.state == DeliveryState.PENDING,
            AlertMessageRow.attempts == row.attempts,
            AlertMessageRow.next_attempt_at == row.next_attempt_at,
        )
        .values(next_attempt_at=until)
    )
    return was_changed(await session.execute(statement))


async def settle(session: AsyncSession, message_id: int, **columns: object) -> None:
    """Record how a try ended."""
    statement = update(AlertMessageRow).where(AlertMessageRow.id == message_id)
    await session.execute(statement.values(**columns))


async def forget_alerts(session: AsyncSession, before: datetime) -> None:
    """Delete alerts that ended before, and messages that were written before and are not pending."""
    old = select(AlertRow.id).where(AlertRow.ended_at < before)
    message = AlertMessageRow
    await session.execute(
        delete(message).where(
            message.state != DeliveryState.PENDING,
            (message.created_at < before) | message.alert_id.in_(old),
        )
    )
    waiting = select(message.alert_id).where(message.alert_id.is_not(None))
    await session.execute(
        delete(AlertRow).where(AlertRow.ended_at < before, AlertRow.id.not_in(waiting))
    )
