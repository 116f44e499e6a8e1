"""Every query on requests with an Idempotency-Key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.bulk import insert_missing
from guanaco_server.database.database import was_changed
from guanaco_server.idempotency.tables import IdempotentRequestRow as Row

UNSYNCED = {"synchronize_session": False}


async def insert(session: AsyncSession, columns: dict[str, Any]) -> None:
    """Insert a row unless the account has one with that key. Waits for others that insert the same."""
    await insert_missing(session, Row, [columns])


async def locked(session: AsyncSession, account_id: str, key_hash: str) -> Row | None:
    statement = select(Row).where(Row.account_id == account_id, Row.key_hash == key_hash)
    return (await session.scalars(statement.with_for_update())).one_or_none()


async def renew(
    session: AsyncSession, account_id: str, key_hash: str, token: str, until: datetime
) -> None:
    await session.execute(
        update(Row)
        .where(Row.account_id == account_id, Row.key_hash == key_hash, Row.token == token)
        .values(claimed_until=until)
        .execution_options(**UNSYNCED)
    )


async def store_answer(
    session: AsyncSession, account_id: str, key_hash: str, token: str, answer: bytes
) -> bool:
    """Store the answer and give the lease back; False if another process has taken it or the row is gone."""
    result = await session.execute(
        update(Row)
        .where(Row.account_id == account_id, Row.key_hash == key_hash, Row.token == token)
        .values(answer=answer, token=None, claimed_until=None)
        .execution_options(**UNSYNCED)
    )
    return was_changed(result)


async def drop(session: AsyncSession, account_id: str, key_hash: str, token: str) -> None:
    await session.execute(
        delete(Row)
        .where(Row.account_id == account_id, Row.key_hash == key_hash, Row.token == token)
        .execution_options(**UNSYNCED)
    )


async def drop_of_conversations(session: AsyncSession, conversation_ids: Sequence[str]) -> None:
    await session.execute(
        delete(Row).where(Row.conversation_id.in_(conversation_ids)).execution_options(**UNSYNCED)
    )


async def newest_without_room(
    session: AsyncSession, account_id: str, limit_bytes: int, row_bytes: int
) -> datetime | None:
    """Return when the newest of the account's answers was claimed that is beyond its bytes; None if there is room for all."""
    size = func.coalesce(func.length(Row.answer), 0) + row_bytes
    each = select(
        Row.created_at, func.sum(size).over(order_by=Row.created_at.desc()).label("total")
    ).where(Row.account_id == account_id)
    sizes = each.subquery()
    newest: datetime | None = await session.scalar(
        select(func.max(sizes.c.created_at)).where(sizes.c.total > limit_bytes)
    )
    return newest


async def drop_answers(session: AsyncSession, account_id: str, until: datetime) -> None:
    """Delete the account's answers up to this time, except of requests that are being answered."""
    await session.execute(
        delete(Row)
        .where(Row.account_id == account_id, Row.created_at <= until, Row.token.is_(None))
        .execution_options(**UNSYNCED)
    )


async def drop_before(session: AsyncSession, before: datetime, limit: int) -> int:
    """Delete some rows that are older, and return how many."""
    old = select(Row.account_id, Row.key_hash).where(Row.created_at < before).limit(limit)
    keys = [tuple(row) for row in await session.execute(old)]
    dropped = 0
    for account_id, key_hash in keys:
        result = await session.execute(
            delete(Row)
            .where(Row.account_id == account_id, Row.key_hash == key_hash, Row.created_at < before)
            .execution_options(**UNSYNCED)
        )
        assert isinstance(result, CursorResult)
        dropped += result.rowcount
    return dropped
