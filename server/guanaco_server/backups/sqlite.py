"""Copies SQLite's files while the platform writes them, by SQLite's own backup API, and puts them back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from guanaco.errors import BackupDamaged, BackupFailed

TABLES, WORKFLOWS = "guanaco.db", "workflows.db"
BUSY_TIMEOUT_S = 30


def copy_files(data_dir: Path, into: Path) -> None:
    """Copy the workflows first: the platform finds by itself which submissions have lost their workflow, not the opposite."""
    if not (data_dir / TABLES).exists():
        raise BackupFailed(
            f"There is no database in {data_dir}.",
            hint="Name the platform's folder with --data-dir.",
        )
    for name in (WORKFLOWS, TABLES):
        if (data_dir / name).exists():
            copy_file(data_dir / name, into / name)


def copy_file(source: Path, target: Path) -> None:
    """Copy one snapshot of a database. Writers go on meanwhile.

    All pages are copied in one step: with several, every commit in between would begin the copy again.
    """
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    with (
        _translated(target),
        closing(
            sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        ) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


def require_sound(path: Path) -> None:
    """Raise BackupDamaged where SQLite finds its pages, indexes or references broken."""
    try:
        with closing(sqlite3.connect(path)) as database:
            found = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
            broken = database.execute("PRAGMA foreign_key_check").fetchone()
    except sqlite3.DatabaseError as error:
        raise BackupDamaged(f"{path.name} is no sound database: {error}.") from None
    if found != ["ok"]:
        raise BackupDamaged(f"{path.name} is no sound database: {found[0]}.")
    if broken is not None:
        raise BackupDamaged(f"{path.name} has {broken[0]} rows that refer to nothing.")


@contextmanager
def _translated(target: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise BackupFailed(
            f"{target.name} cannot be copied to {target.parent.parent}: {error}.",
            hint="Look whether there is room, and whether the database can be read.",
        ) from None


def count_rows(path: Path) -> dict[str, int]:
    """Count the rows of each table."""
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        return {
            name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608  # our own tables
            for (name,) in tables.fetchall()
        }


def revision_of_file(path: Path) -> str:
    """Read the revision of the tables; BackupFailed where there are none."""
    try:
        with closing(sqlite3.connect(path)) as database:
            return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    except (sqlite3.Error, TypeError):
        raise BackupFailed(f"{path.name} has no tables of Guanaco.") from None
