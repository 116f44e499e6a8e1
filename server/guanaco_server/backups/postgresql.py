"""Backs up a PostgreSQL with PostgreSQL's own tools, and puts it back.

dump   pg_dump of one database, in one snapshot; needs no right but to read; goes into any PostgreSQL that is as new
base   pg_basebackup of the whole server; with its archived WAL it goes back to any moment since
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from guanaco.errors import BackupDamaged, BackupFailed, DatabaseUnavailable
from guanaco_server.backups.wal import WalPosition, lsn_of, require_archive
from guanaco_server.database.database import UNAVAILABLE_HINT
from guanaco_server.database.postgresql.direct import NETWORK

DUMP = "database.dump"
BASE = "base"
MISSING = "is not on the path"
NO_TOOLS = "Install PostgreSQL's client programs, as new as the server (`apt-get install postgresql-client`)."


@dataclass(frozen=True)
class DatabaseSnapshot:
    """The contents of the database at one moment. ``rows`` is None where it was not counted."""

    taken_at: datetime
    revision: str
    version: str
    rows: dict[str, int] | None


def dump(url: str, into: Path) -> DatabaseSnapshot:
    """Write a dump of a database, and count its rows in the very same snapshot."""
    tool = find_tool("pg_dump")
    with _connected(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        found = _look(connection, is_counted=True)
        (exported,) = _one(connection, "SELECT pg_export_snapshot()")
        _run(
            [
                tool,
                "--format=custom",
                "--no-owner",
                "--no-privileges",
                f"--snapshot={exported}",
                f"--file={into / DUMP}",
                f"--dbname={_without_password(url)}",
            ],
            url,
        )
    return found


def base_backup(url: str, into: Path, archive: Path) -> DatabaseSnapshot:
    """Copy the whole server's files, with the WAL that makes them consistent, and a sum of each.

    Raises:
        BackupFailed: It cannot be made, or the archive that is to continue it is not there.
    """
    tool = find_tool("pg_basebackup")
    with _connected(url) as connection:
        found = _look(connection, is_counted=False)
    require_archive(archive)
    _run(
        [
            tool,
            f"--pgdata={into / BASE}",
            "--format=tar",
            "--compress=1",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--manifest-checksums=SHA256",
            "--no-password",
            f"--dbname={_without_password(url)}",
        ],
        url,
    )
    return found


def restore_dump(folder: Path, url: str) -> None:
    """Put a dump into an empty database: all of it, or nothing.

    Raises:
        BackupFailed: The database has tables, or PostgreSQL refuses.
    """
    with _connected(url) as connection:
        (tables,) = _one(
            connection,
            "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
        )
    if tables:
        raise BackupFailed(
            f"The database has {tables} tables already, so nothing was restored.",
            hint="Name an empty one: `createdb NAME`, then GUANACO_DATABASE_URL=postgresql://…/NAME.",
        )
    _run(
        [
            find_tool("pg_restore"),
            "--single-transaction",
            "--exit-on-error",
            "--no-owner",
            "--no-privileges",
            f"--dbname={_without_password(url)}",
            folder / DUMP,
        ],
        url,
    )


def unpack_base(folder: Path, into: Path, wal: Path | None, until: datetime | None) -> None:
    """Lay out a data folder that PostgreSQL, when it is started there, recovers from the WAL.

    Args:
        folder: The backup.
        into: The new data folder; it is empty, or not there.
        wal: The archive of WAL. None: only what the backup itself holds.
        until: Recover up to this moment. None: up to the archive's end.
    """
    if wal is not None:
        require_archive(wal)
    if into.exists() and any(into.iterdir()):
        raise BackupFailed(
            f"{into} is not empty, so nothing was restored.", hint="Name a new folder."
        )
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _extract(folder / BASE / "base.tar.gz", into)
        _extract(folder / BASE / "pg_wal.tar.gz", into / "pg_wal")
    except (tarfile.TarError, EOFError) as error:
        raise BackupDamaged(f"The base backup cannot be unpacked: {error}.") from None
    (into / "postgresql.auto.conf").open("a").close()
    if wal is not None:
        _ask_recovery(into, wal, until)


def rows_of(url: str) -> dict[str, int]:
    """Count the rows of each of our tables."""
    with _connected(url) as connection:
        return _count(connection)


def replication_allowed(url: str) -> bool:
    with _connected(url) as connection:
        (allowed,) = _one(
            connection,
            "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user",
        )
    return bool(allowed)


@dataclass(frozen=True)
class Recovery:
    """The end of a recovery. ``newest_commit`` is None where it replayed no transaction."""

    ended_at: WalPosition
    newest_commit: datetime | None


def read_recovery(url: str, data: Path) -> Recovery:
    """Return where the recovery of a running server ended, after which it began a timeline of its own."""
    with _connected(url) as connection:
        lsn, newest_commit, segment = _one(
            connection,
            "SELECT pg_last_wal_replay_lsn()::text, pg_last_xact_replay_timestamp(), pg_walfile_name(pg_current_wal_lsn())",
        )
    history = (data / "pg_wal" / f"{segment[:8]}.history").read_text()
    forks = [line.split() for line in history.splitlines() if line.strip()]
    return Recovery(WalPosition(int(forks[-1][0]), lsn_of(lsn)), newest_commit)


def find_tool(name: str) -> Path:
    """Return the path of one of PostgreSQL's programs; BackupFailed where it is missing."""
    if found := shutil.which(name):
        return Path(found)
    raise BackupFailed(f"{name} {MISSING}, so nothing was done.", hint=NO_TOOLS)


def _ask_recovery(into: Path, wal: Path, until: datetime | None) -> None:
    quoted = str(wal.absolute()).replace("'", "''")
    lines = [f'restore_command = \'cp "{quoted}/%f" "%p"\'', "recovery_target_action = 'promote'"]
    if until is not None:
        lines.append(f"recovery_target_time = '{until.isoformat()}'")
    else:
        lines.append("recovery_target_timeline = 'latest'")
    with (into / "postgresql.auto.conf").open("a") as conf:
        conf.write("\n".join(lines) + "\n")
    (into / "recovery.signal").touch(mode=0o600)


def _extract(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")


def _look(connection: psycopg.Connection[Any], *, is_counted: bool) -> DatabaseSnapshot:
    try:
        (revision,) = _one(connection, "SELECT version_num FROM alembic_version")
    except psycopg.errors.UndefinedTable:
        raise BackupFailed("The database has no tables of Guanaco.") from None
    taken_at, version = _one(connection, "SELECT now(), current_setting('server_version')")
    rows = _count(connection) if is_counted else None
    return DatabaseSnapshot(taken_at, revision, f"PostgreSQL {version}", rows)


def _count(connection: psycopg.Connection[Any]) -> dict[str, int]:
    tables = connection.execute(
        "SELECT schemaname, tablename FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
    ).fetchall()
    found = {}
    for schema, table in tables:
        counting = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, table))
        row = connection.execute(counting).fetchone()
        assert row is not None
        found[table if schema == "public" else f"{schema}.{table}"] = int(row[0])
    return found


def _one(connection: psycopg.Connection[Any], statement: Any) -> tuple[Any, ...]:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return tuple(row)


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = psycopg.connect(conninfo, **NETWORK)
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise DatabaseUnavailable(reason, hint=UNAVAILABLE_HINT) from None
    with connection:
        yield connection


def _without_password(database_url: str) -> str:
    """Remove the password from a URL for a command line, which everybody on the machine can read."""
    url = make_url(database_url)
    open_url = URL.create(
        "postgresql", url.username, None, url.host, url.port, url.database, url.query
    )
    return open_url.render_as_string()


def _run(command: Sequence[str | Path], url: str) -> None:
    password = make_url(url).password
    environment = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        name = Path(command[0]).name
        raise BackupFailed(
            f"{name} failed: {_reason(done.stderr) or f'status {done.returncode}'}.",
            hint=NO_TOOLS if "version" in done.stderr else None,
        )


def _reason(output: str) -> str:
    """Return the first line that says what is wrong, without the program's name."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "FATAL" in line] or lines
    return re.sub(r"^\S+: (error: )?", "", errors[0]).rstrip(".") if errors else ""
