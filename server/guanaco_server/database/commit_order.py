"""Numbers that grow in the order in which they can be seen."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession


async def in_commit_order(session: AsyncSession, table: str) -> None:
    """Call it before inserting: until this transaction ends, no other one that calls it inserts there.

    Else a reader who has seen number 8 would never hear of 7, which was taken first and committed last.
    SQLite has one writer at a time anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(
            text("SELECT pg_advisory_xact_lock(hashtext(:table))"), {"table": table}
        )
