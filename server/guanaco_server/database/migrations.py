"""Brings a database's schema to this version's.

A migration's file name starts with its number, and the number is its revision: ``0002_add_x.py`` follows
``0001_first_tables.py``. So the newest revision is known from the folder, and the usual start, which has
nothing to do, never imports Alembic (0.1 s).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, MetaData, inspect, text

import guanaco_server
from guanaco.errors import InvalidSettings
from guanaco_server.database.database import Database
from guanaco_server.database.tables import Table

PACKAGE = Path(guanaco_server.__file__).parent
PACKAGED_SCRIPTS = PACKAGE / "migrations"
CHECKOUT_SCRIPTS = PACKAGE.parents[1] / "migrations"
SCRIPTS = PACKAGED_SCRIPTS if PACKAGED_SCRIPTS.is_dir() else CHECKOUT_SCRIPTS

LOCK_KEY = 0x6775616E61636F  # "guanaco": PostgreSQL's advisory lock of whoever migrates


async def upgrade(database: Database, scripts: Path = SCRIPTS) -> None:
    """Run the migrations that the database lacks, all or none; safe to repeat, and with several processes at once."""
    newest = newest_revision(scripts)
    async with database.engine.connect() as connection:
        revision = await connection.run_sync(current_revision)
    if revision == newest:
        return
    if revision is not None and revision > newest:
        raise InvalidSettings(
            f"The database is at revision {revision}, newer than this Guanaco, which knows {newest}.",
            hint="Start the version of Guanaco that last used it, or a newer one.",
        )
    async with database.engine.connect() as connection:
        await connection.run_sync(_run, scripts)


def newest_revision(scripts: Path = SCRIPTS) -> str:
    return max(path.name.partition("_")[0] for path in (scripts / "versions").glob("*.py"))


def current_revision(connection: Connection) -> str | None:
    """Return the database's revision; None for a database without our tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def complete_metadata() -> MetaData:
    """Return the tables of every room; imports each room's tables.py."""
    for room in pkgutil.iter_modules([str(PACKAGE)], f"{guanaco_server.__name__}."):
        if room.ispkg and importlib.util.find_spec(f"{room.name}.tables"):
            importlib.import_module(f"{room.name}.tables")
    return Table.metadata


def _run(connection: Connection, scripts: Path) -> None:
    with _alone(connection):
        _run_scripts(connection, scripts)


def _run_scripts(connection: Connection, scripts: Path) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    command.upgrade(config, "head")


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """One transaction that no other migrating process shares; it commits at the end of the block."""
    if connection.dialect.name == "sqlite":
        with _unchecked_foreign_keys(connection), connection.begin():
            yield
            _require_whole_references(connection)
    else:
        with connection.begin():
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
            yield


@contextmanager
def _unchecked_foreign_keys(connection: Connection) -> Iterator[None]:
    """Copying a table drops the old one, at which SQLite would refuse, or cascade, were foreign keys on."""
    connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")  # has no effect inside a transaction, hence before it
    try:
        yield
    finally:
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()


def _require_whole_references(connection: Connection) -> None:
    if broken := connection.execute(text("PRAGMA foreign_key_check")).first():
        raise InvalidSettings(f"The migration would leave {broken[0]} rows that refer to nothing.")
