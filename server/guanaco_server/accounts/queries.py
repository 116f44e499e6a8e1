"""Every query on accounts and keys."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.accounts.tables import AccountRow, ApiKeyRow


async def account_by_name(session: AsyncSession, name: str) -> AccountRow | None:
    return await session.scalar(select(AccountRow).where(AccountRow.name == name))


async def key_by_id(session: AsyncSession, key_id: str) -> ApiKeyRow | None:
    return await session.get(ApiKeyRow, key_id)


async def all_keys(session: AsyncSession) -> Sequence[ApiKeyRow]:
    return (await session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at))).all()


async def key_count(session: AsyncSession) -> int:
    return await session.scalar(select(func.count()).select_from(ApiKeyRow)) or 0
