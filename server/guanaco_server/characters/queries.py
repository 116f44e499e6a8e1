"""Every query on characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.characters.tables import CharacterFileRow, CharacterRow, CharacterVersionRow
from guanaco_server.database.database import among


async def by_id(session: AsyncSession, character_id: str) -> CharacterRow | None:
    return await session.get(CharacterRow, character_id)


async def locked(session: AsyncSession, character_id: str) -> CharacterRow | None:
    """Lock the character: nobody else adds a version, changes or deletes it until this transaction ends."""
    return await session.get(CharacterRow, character_id, with_for_update=True)


async def version(
    session: AsyncSession, character_id: str, number: int
) -> CharacterVersionRow | None:
    return await session.get(CharacterVersionRow, (character_id, number))


async def card(session: AsyncSession, character_id: str, number: int) -> str:
    """Return the JSON of a version's card."""
    row = CharacterVersionRow
    statement = select(row.card).where(row.character_id == character_id, row.number == number)
    return str(await session.scalar(statement))


async def page(
    session: AsyncSession,
    account_id: str | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[CharacterRow]:
    """Return an account's characters, or everybody's public ones, newest first."""
    row = CharacterRow
    owned = row.is_public if account_id is None else row.account_id == account_id
    statement = select(row).where(owned)
    if before is not None:
        at, character_id = before
        statement = statement.where(
            or_(row.created_at < at, (row.created_at == at) & (row.id < character_id))
        )
    statement = statement.order_by(row.created_at.desc(), row.id.desc()).limit(limit)
    return (await session.scalars(statement)).all()


async def totals(session: AsyncSession, account_id: str) -> tuple[int, int]:
    """Return how many characters an account has, and how many bytes they take."""
    found = await session.execute(
        select(func.count(), func.coalesce(func.sum(CharacterRow.size_bytes), 0)).where(
            CharacterRow.account_id == account_id
        )
    )
    count, size = found.one()
    return int(count), int(size)


async def known_files(
    session: AsyncSession, character_id: str, hashes: Collection[str]
) -> set[str]:
    """Return which of these files the character has already."""
    row = CharacterFileRow
    statement = select(row.sha256).where(
        row.character_id == character_id, among(session, row.sha256, hashes)
    )
    return set(await session.scalars(statement))


async def files(
    session: AsyncSession, character_id: str, hashes: Collection[str]
) -> dict[str, bytes]:
    """Return the bytes of these files."""
    row = CharacterFileRow
    found = await session.execute(
        select(row.sha256, row.content).where(
            row.character_id == character_id, among(session, row.sha256, hashes)
        )
    )
    return {sha256: content for sha256, content in found}


async def ids_of(session: AsyncSession, account_id: str) -> Sequence[str]:
    statement = select(CharacterRow.id).where(CharacterRow.account_id == account_id)
    return (await session.scalars(statement.with_for_update())).all()


async def erase(session: AsyncSession, character_ids: Collection[str]) -> int:
    """Delete characters with everything of theirs; how many versions they had."""
    if not character_ids:
        return 0
    for table in (CharacterFileRow, CharacterVersionRow):
        gone = await session.execute(
            delete(table).where(among(session, table.character_id, character_ids))
        )
    await session.execute(
        delete(CharacterRow).where(among(session, CharacterRow.id, character_ids))
    )
    return int(gone.rowcount)  # type: ignore[attr-defined]
