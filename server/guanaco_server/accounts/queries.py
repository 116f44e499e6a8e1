"""Every query on accounts and keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import Role
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


async def working_admin_keys(session: AsyncSession) -> list[str]:
    """Lock the admin keys that are not revoked until the transaction ends, and return their ids."""
    statement = (
        select(ApiKeyRow.id)
        .join(AccountRow, ApiKeyRow.account_id == AccountRow.id)
        .where(AccountRow.role == Role.ADMIN, ApiKeyRow.revoked_at.is_(None))
        .order_by(ApiKeyRow.id)
        .with_for_update(of=ApiKeyRow)
    )
    return list(await session.scalars(statement))


async def name_of_an_admin(session: AsyncSession) -> str | None:
    """Return the name of the oldest account with the role admin."""
    statement = select(AccountRow.name).where(AccountRow.role == Role.ADMIN)
    return await session.scalar(statement.order_by(AccountRow.created_at).limit(1))


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
