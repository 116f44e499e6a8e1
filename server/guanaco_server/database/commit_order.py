"""Locks that hold until a transaction ends: numbers that grow in the order in which they can be seen, and things that happen once."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession


async def in_commit_order(session: AsyncSession, table: str) -> None:
    """Call it before inserting: until this transaction ends, no other one that calls it inserts there.

    Else a reader who has seen number 8 would never hear of 7, which was taken first and committed last.
    """
    await one_at_a_time(session, table)


async def one_at_a_time(session: AsyncSession, what: str) -> None:
    """Wait until no other transaction holds this name; others wait until this one ends. Read what they have written after this call.

    SQLite has one writer at a time anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_advisory_xact_lock(hashtext(:what))"), {"what": what})
