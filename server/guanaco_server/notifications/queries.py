"""Every query on webhooks and their deliveries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.webhooks import DeliveryState
from guanaco_server.database.database import was_changed
from guanaco_server.notifications.tables import (
    WebhookDeliveryRow,
    WebhookProgressRow,
    WebhookRow,
)


async def by_account(session: AsyncSession, account_id: str) -> WebhookRow | None:
    return await session.scalar(select(WebhookRow).where(WebhookRow.account_id == account_id))


async def all_webhooks(session: AsyncSession) -> Sequence[WebhookRow]:
    return (await session.scalars(select(WebhookRow))).all()


async def exists(session: AsyncSession, webhook_id: str) -> bool:
    """Tell whether a webhook exists, and lock it until the transaction ends."""
    found = await session.scalar(
        select(WebhookRow.id).where(WebhookRow.id == webhook_id).with_for_update()
    )
    return found is not None


async def remove(session: AsyncSession, webhook_id: str) -> None:
    for table in (WebhookDeliveryRow, WebhookProgressRow):
        await session.execute(delete(table).where(table.webhook_id == webhook_id))
    await session.execute(delete(WebhookRow).where(WebhookRow.id == webhook_id))


async def all_progress(session: AsyncSession) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the last told event and rating, by webhook and submission."""
    rows = await session.scalars(select(WebhookProgressRow))
    return {(r.webhook_id, r.submission_id): (r.event_seq, r.feedback_count) for r in rows}


async def note_progress(
    session: AsyncSession, webhook_id: str, submission_id: str, event_seq: int, feedback_count: int
) -> None:
    """Store the progress. It never goes back."""
    row = await session.get(WebhookProgressRow, (webhook_id, submission_id), with_for_update=True)
    if row is None:
        row = WebhookProgressRow(
            webhook_id=webhook_id, submission_id=submission_id, event_seq=0, feedback_count=0
        )
        session.add(row)
    row.event_seq = max(row.event_seq, event_seq)
    row.feedback_count = max(row.feedback_count, feedback_count)


async def add_deliveries(session: AsyncSession, rows: Sequence[WebhookDeliveryRow]) -> None:
    """Insert deliveries. One that exists already stays as it is."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    columns = WebhookDeliveryRow.__table__.columns.keys()
    for row in rows:
        values = {name: getattr(row, name) for name in columns if getattr(row, name) is not None}
        await session.execute(insert(WebhookDeliveryRow).values(**values).on_conflict_do_nothing())


async def newest_deliveries(
    session: AsyncSession, webhook_id: str, limit: int
) -> Sequence[WebhookDeliveryRow]:
    statement = select(WebhookDeliveryRow).where(WebhookDeliveryRow.webhook_id == webhook_id)
    newest = (WebhookDeliveryRow.created_at.desc(), WebhookDeliveryRow.id)
    return (await session.scalars(statement.order_by(*newest).limit(limit))).all()


async def has_pending(session: AsyncSession) -> bool:
    row = WebhookDeliveryRow
    statement = select(row.id).where(row.state == DeliveryState.PENDING).limit(1)
    return await session.scalar(statement) is not None


async def claim(
    session: AsyncSession,
    token: str,
    now: datetime,
    until: datetime,
    busy: Collection[str],
    per_webhook: int,
    limit: int,
) -> Sequence[tuple[WebhookDeliveryRow, WebhookRow]]:
    """Lease due deliveries to ``token``, a few of each webhook that is not busy, and return them."""
    row = WebhookDeliveryRow
    is_free = or_(row.claimed_until.is_(None), row.claimed_until < now)
    is_due = (row.state == DeliveryState.PENDING, row.next_attempt_at <= now, is_free)
    place = func.row_number().over(
        partition_by=row.webhook_id, order_by=(row.next_attempt_at, row.created_at, row.id)
    )
    waiting = (
        select(row.id, place.label("place")).where(*is_due, row.webhook_id.not_in(busy)).subquery()
    )
    chosen = select(waiting.c.id).where(waiting.c.place <= per_webhook).limit(limit)
    ids = (await session.scalars(chosen)).all()
    if not ids:
        return []
    await session.execute(
        update(row).where(row.id.in_(ids), *is_due).values(claim=token, claimed_until=until)
    )
    leased = select(row, WebhookRow).join(WebhookRow, WebhookRow.id == row.webhook_id)
    found = await session.execute(
        leased.where(row.claim == token).execution_options(populate_existing=True)
    )
    return [(delivery, webhook) for delivery, webhook in found]


async def settle(session: AsyncSession, delivery_id: str, token: str, **columns: object) -> bool:
    """Record how a try ended. Return False if another process has the lease now."""
    statement = (
        update(WebhookDeliveryRow)
        .where(WebhookDeliveryRow.id == delivery_id, WebhookDeliveryRow.claim == token)
        .values(claim=None, claimed_until=None, **columns)
    )
    return was_changed(await session.execute(statement))


async def forget(session: AsyncSession, before: datetime) -> None:
    """Delete deliveries that have ended and are older."""
    await session.execute(
        delete(WebhookDeliveryRow).where(
            WebhookDeliveryRow.state != DeliveryState.PENDING,
            WebhookDeliveryRow.created_at < before,
        )
    )
