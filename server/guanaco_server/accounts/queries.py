"""Every query on accounts and keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.accounts.tables import AccountRow, ApiKeyRow, AuditRow
from guanaco_server.database.database import among


async def account_by_name(session: AsyncSession, name: str) -> AccountRow | None:
    return await session.scalar(select(AccountRow).where(AccountRow.name == name))


async def account_by_id(session: AsyncSession, account_id: str) -> AccountRow:
    return await session.get_one(AccountRow, account_id)


async def key_by_id(session: AsyncSession, key_id: str) -> ApiKeyRow | None:
    return await session.get(ApiKeyRow, key_id)


async def all_keys(session: AsyncSession) -> Sequence[ApiKeyRow]:
    return (await session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at))).all()


async def key_count(session: AsyncSession) -> int:
    return await session.scalar(select(func.count()).select_from(ApiKeyRow)) or 0


async def audit_before(
    session: AsyncSession, entry_id: int | None, limit: int
) -> Sequence[AuditRow]:
    """Newest first."""
    statement = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if entry_id is not None:
        statement = statement.where(AuditRow.id < entry_id)
    return (await session.scalars(statement)).all()


async def rename_subjects(session: AsyncSession, subjects: Collection[str], name: str) -> None:
    if subjects:
        await session.execute(
            update(AuditRow).where(among(session, AuditRow.subject, subjects)).values(subject=name)
        )
