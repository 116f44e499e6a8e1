"""Checks that the database has the tables that this version needs; for processes that do not migrate by themselves.

A newer schema is fine: a migration must leave the version before it working, so that old and new run side by side.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.exc import DBAPIError

from guanaco.errors import SchemaNotReady
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import current_revision, newest_revision

POLL_S = 1.0
LONGEST_WAIT_S = 300

logger = logging.getLogger(__name__)


async def revision_of(database: Database) -> str | None:
    async with database.engine.connect() as connection:
        return await connection.run_sync(current_revision)


async def is_current(database: Database) -> bool:
    return (await revision_of(database) or "") >= newest_revision()


async def wait_until_current(database: Database, timeout_s: float = LONGEST_WAIT_S) -> None:
    """SchemaNotReady when nobody has migrated the database, or it did not answer, in that time."""
    deadline = time.monotonic() + timeout_s
    logged = ""
    while True:
        try:
            found = await revision_of(database) or "none"
            if found >= newest_revision() and found != "none":
                return
            state = f"is at revision {found}"
        except (DBAPIError, OSError):
            state = "does not answer"
        if time.monotonic() >= deadline:
            raise SchemaNotReady(state, newest_revision())
        if state != logged:
            logged = state
            logger.warning(
                "the database %s; waiting for revision %s: `guanaco migrate` brings it there",
                state,
                newest_revision(),
            )
        await asyncio.sleep(POLL_S)
