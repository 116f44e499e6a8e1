"""The audit log, for good: who looked at users' data or erased it, and what admins did that others feel."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.accounts import AuditEntry, AuditPage
from guanaco.errors import InvalidInput
from guanaco_server.accounts import queries
from guanaco_server.accounts.tables import AuditRow
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock


class Actor(Protocol):
    """An account."""

    @property
    def name(self) -> str: ...


class AuditLog:
    """``subject`` names what it was done to: a pseudonym or an id of ours, never a user's own id."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def note(self, session: AsyncSession, account: Actor, action: str, subject: str) -> None:
        """Note an action within the caller's transaction, so that it is noted if and only if it was done."""
        session.add(
            AuditRow(at=self._clock.now(), account=account.name, action=action, subject=subject)
        )

    async def forget(
        self, session: AsyncSession, subjects: Collection[str], pseudonym: str
    ) -> None:
        """Replace these users by ``pseudonym`` in all entries, within the caller's transaction."""
        await queries.rename_subjects(session, subjects, pseudonym)

    async def list(self, limit: int, cursor: str | None = None) -> AuditPage:
        """Newest first."""
        async with self._database.read() as session:
            rows = await queries.audit_before(session, _decode(cursor), limit)
        entries = [
            AuditEntry(
                id=row.id, at=row.at, account=row.account, action=row.action, subject=row.subject
            )
            for row in rows
        ]
        return AuditPage(items=entries, next_cursor=str(rows[-1].id) if rows else None)


def _decode(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidInput("The cursor is not one that this server gave.")
    return int(cursor)
