"""Restores a backup as the platform's data. What was there is set aside, or must be empty; it is never overwritten.

SQLite   sums ─▶ copy beside ─▶ check ─▶ migrate ─▶ set the old file aside ─▶ rename ─▶ replay erasures
dump     sums ─▶ one transaction into an empty database ─▶ migrate ─▶ replay erasures
base     sums ─▶ unpack ─▶ ask PostgreSQL to recover up to a moment; the platform's next start does the rest
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from guanaco.errors import BackupFailed, InvalidInput
from guanaco_server.backups import postgresql, sqlite
from guanaco_server.backups.document import BackupDocument, fingerprint_of
from guanaco_server.backups.folder import read_backup, writable
from guanaco_server.backups.making import pseudonym_key, wal_problem_of
from guanaco_server.backups.verifying import require_known_revision
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.settings import Settings

RESTORING = ".restoring"


@dataclass(frozen=True)
class Restored:
    """``set_aside`` is the database that was there before; ``must_start`` is True where PostgreSQL has yet to recover.
    ``wal_problem`` says why it will not get to the archive's end.
    """

    document: BackupDocument
    into: str
    set_aside: Path | None
    must_start: bool
    took_s: float
    wal_problem: str | None


def restore_backup(
    settings: Settings,
    folder: Path,
    *,
    replace: bool = False,
    pg_data: Path | None = None,
    until: datetime | None = None,
    without_key: bool = False,
) -> Restored:
    """Restore a backup.

    Args:
        settings: Those of the platform that is to run afterwards; they say where its data is.
        folder: The backup.
        replace: Set the SQLite database that is there aside.
        pg_data: The new data folder of a PostgreSQL server, for a base backup.
        until: Recover a base backup up to this moment. None: up to the end of the archived WAL.
        without_key: Go on although the platform's pseudonym key is another one than the backup's.

    Raises:
        BackupDamaged: The backup is not whole, was changed, or is too new.
        BackupFailed: It does not fit to the settings, or there is something already.
        DataDirInUse: The platform runs.
    """
    began = time.monotonic()
    document = read_backup(folder, pseudonym_key(settings))
    require_known_revision(document)
    _require_fitting(settings, document, pg_data, until)
    if not without_key:
        _require_same_key(settings, document)
    set_aside = None
    match document.method:
        case "sqlite":
            into = str(settings.data_dir.absolute() / sqlite.TABLES)
            with DataDir(settings.data_dir) as data_dir:
                set_aside = _restore_files(folder, data_dir.path, replace=replace)
        case "dump":
            into = "the database"
            postgresql.restore_dump(folder, settings.sqlalchemy_url)
            asyncio.run(_migrate(settings.sqlalchemy_url))
        case "base":
            assert pg_data is not None
            into = str(pg_data)
            with writable(pg_data):
                postgresql.unpack_base(folder, pg_data, settings.backup_wal_dir, until)
    must_start = document.method == "base"
    problem = wal_problem_of(settings, folder, document)
    return Restored(document, into, set_aside, must_start, time.monotonic() - began, problem)


def _require_fitting(
    settings: Settings, document: BackupDocument, pg_data: Path | None, until: datetime | None
) -> None:
    if (document.method == "sqlite") != (settings.database_url is None):
        there = "SQLite" if document.method == "sqlite" else "PostgreSQL"
        raise BackupFailed(
            f"The backup is of {there}, and the settings name another kind of database.",
            hint="Set GUANACO_DATABASE_URL, or leave it out, as it was when the backup was made.",
        )
    if (document.method == "base") != (pg_data is not None):
        raise InvalidInput(
            "A base backup is restored into a new data folder of PostgreSQL."
            if document.method == "base"
            else "Only a base backup has a data folder of PostgreSQL.",
            hint="--pg-data names that folder."
            if document.method == "base"
            else "Leave out --pg-data.",
        )
    if until is not None and (document.method != "base" or settings.backup_wal_dir is None):
        raise InvalidInput(
            "Only a base backup with archived WAL goes back to a moment.",
            hint="backup_wal_dir names the archive; docs/operating.md says how to have one.",
        )
    if until is not None and until < document.finished_at:
        raise InvalidInput(
            f"The backup was finished at {document.finished_at:%Y-%m-%d %H:%M:%S} UTC, after that moment.",
            hint="Take an older backup.",
        )


def _require_same_key(settings: Settings, document: BackupDocument) -> None:
    key = pseudonym_key(settings)
    for secret in document.secrets:
        if key is None or fingerprint_of(key) != secret.fingerprint:
            raise BackupFailed(
                "The platform's pseudonym key is "
                + ("missing." if key is None else "another one than the backup's."),
                hint=f"It was kept in {secret.kept_in}: bring it back first. With --without-key users get new pseudonyms, and erasures since the backup cannot be replayed.",
            )


def _restore_files(folder: Path, data_dir: Path, *, replace: bool) -> Path | None:
    tables = data_dir / sqlite.TABLES
    if tables.exists() and not replace:
        raise BackupFailed(
            f"{tables} is there already, so nothing was restored.",
            hint="Name another --data-dir, or set it aside with --replace.",
        )
    copies = [name for name in (sqlite.WORKFLOWS, sqlite.TABLES) if (folder / name).exists()]
    try:
        with writable(data_dir):
            return _put_in_place(folder, data_dir, copies)
    finally:
        for left in data_dir.glob(f"*{RESTORING}*"):
            left.unlink()


def _put_in_place(folder: Path, data_dir: Path, copies: Sequence[str]) -> Path | None:
    copied = {name: data_dir / f"{name}{RESTORING}" for name in copies}
    for name, copy in copied.items():
        shutil.copyfile(folder / name, copy)
        copy.chmod(0o600)
        sqlite.require_sound(copy)
    asyncio.run(_migrate(f"sqlite+aiosqlite:///{copied[sqlite.TABLES]}"))
    for copy in copied.values():
        _into_one_file(copy)
    aside = _set_aside(data_dir)
    for name, copy in copied.items():
        copy.replace(data_dir / name)
    if sqlite.WORKFLOWS not in copied:
        (data_dir / sqlite.WORKFLOWS).unlink(missing_ok=True)  # of a later state; set aside
    return aside


def _set_aside(data_dir: Path) -> Path | None:
    """Give the files that are there a second name; the first is taken over by a rename, so there is always a database."""
    if not (data_dir / sqlite.TABLES).exists():
        return None
    mark = f".before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for name in (sqlite.WORKFLOWS, sqlite.TABLES):
        path = data_dir / name
        if not path.exists():
            continue
        with suppress(sqlite3.DatabaseError):  # damaged, which may be why another is restored
            _into_one_file(path)
        os.link(path, data_dir / f"{name}{mark}")
        for log in ("-wal", "-shm"):
            if (beside := data_dir / f"{name}{log}").exists():
                beside.rename(data_dir / f"{name}{mark}{log}")
    return data_dir / f"{sqlite.TABLES}{mark}"


def _into_one_file(path: Path) -> None:
    """Write SQLite's log into the file, and leave no log: nobody else has it open."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=DELETE")


async def _migrate(url: str) -> None:
    database = Database(url)
    try:
        await upgrade(database)
    finally:
        await database.close()
