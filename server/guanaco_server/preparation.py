"""Prepare a database before processes that share it start: `guanaco migrate`, `guanaco first-key`, `guanaco doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from guanaco.accounts import CreatedKey
from guanaco.errors import SchemaNotReady
from guanaco_server.accounts.room import build_accounts
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import newest_revision, upgrade
from guanaco_server.database.schema import revision_of
from guanaco_server.observability import logs
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.settings import Settings


def migrate(settings: Settings) -> tuple[str | None, str]:
    """Migrate, and return the revisions before and after; they are the same where there was nothing to do."""
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    return asyncio.run(_migrate(settings))


def first_key(settings: Settings) -> CreatedKey | None:
    """Make an admin key where none works; None where one does. SchemaNotReady before `guanaco migrate`."""
    return asyncio.run(_first_key(settings))


def check_database(settings: Settings) -> None:
    """Raise DatabaseUnavailable, with the reason, where the database does not answer."""

    async def check() -> None:
        async with _opened(settings):
            pass

    asyncio.run(check())


async def _migrate(settings: Settings) -> tuple[str | None, str]:
    if settings.database_url is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with _opened(settings) as database:
        before = await revision_of(database)
        await upgrade(database)
        return before, await revision_of(database) or ""


async def _first_key(settings: Settings) -> CreatedKey | None:
    async with _opened(settings) as database:
        found = await revision_of(database)
        if (found or "") < newest_revision():
            raise SchemaNotReady(f"is at revision {found or 'none'}", newest_revision())
        return await build_accounts(database, SystemClock()).accounts.create_first_key()


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Database]:
    """Open the database, or raise DatabaseUnavailable."""
    database = Database(settings.sqlalchemy_url)
    try:
        await database.check()
        yield database
    finally:
        await database.close()
