"""What an operator does to a database before processes that share it start: `guanaco migrate`, `guanaco first-key`."""

from __future__ import annotations

import asyncio

from guanaco.accounts import CreatedKey
from guanaco_server.accounts.room import build_accounts
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.schema import revision_of
from guanaco_server.observability import logs
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.settings import Settings


def migrate(settings: Settings) -> tuple[str | None, str]:
    """The revisions before and after; the same where there was nothing to do."""
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    return asyncio.run(_migrate(settings))


def first_key(settings: Settings) -> CreatedKey | None:
    """The admin key of a database without keys; None where there are some."""
    return asyncio.run(_first_key(settings))


async def _migrate(settings: Settings) -> tuple[str | None, str]:
    if settings.database_url is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(settings.sqlalchemy_url)
    try:
        before = await revision_of(database)
        await upgrade(database)
        return before, await revision_of(database) or ""
    finally:
        await database.close()


async def _first_key(settings: Settings) -> CreatedKey | None:
    database = Database(settings.sqlalchemy_url)
    try:
        return await build_accounts(database, SystemClock()).accounts.create_first_key()
    finally:
        await database.close()
