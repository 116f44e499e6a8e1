"""A PostgreSQL server of our own in a scratch folder, on a Unix socket: what a backup is tried out in."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from guanaco.errors import BackupFailed

START_TIMEOUT_S = 3_600  # WAL of a day is replayed before it answers
STOP_TIMEOUT_S = 60
# A copied server may have other settings; hot_standby would want as many connections as the primary had.
OPTIONS = (
    *("listen_addresses=", "port=5432", "ssl=off", "logging_collector=off"),
    *("fsync=off", "archive_mode=off", "hot_standby=off"),
)
DEBIAN = Path("/usr/lib/postgresql")


@contextmanager
def empty_server(folder: Path) -> Iterator[str]:
    """Make a new cluster and run it; yields the URL of its empty database."""
    binaries = server_programs()
    user = _chown_to_unprivileged_user(folder)
    data = folder / "data"
    command: list[str | Path] = [binaries / "initdb", "--pgdata", data, "--username=postgres"]
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    done = subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise BackupFailed(f"initdb failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}.")
    with _running(binaries, folder, data, user, "postgres", "postgres"):
        yield _url(folder, "postgres", "postgres")


@contextmanager
def restored_server(folder: Path, user_name: str, database: str) -> Iterator[str]:
    """Run the cluster that was unpacked into ``folder/data``; yields its URL once it has recovered."""
    data = folder / "data"
    binaries = server_programs((data / "PG_VERSION").read_text().strip())
    (data / "postgresql.conf").touch()  # Debian keeps it elsewhere
    (data / "pg_hba.conf").write_text("local all all trust\n")  # of the scratch copy only
    user = _chown_to_unprivileged_user(folder)
    with _running(binaries, folder, data, user, user_name, database):
        yield _url(folder, user_name, database)


def server_programs(major: str | None = None) -> Path:
    """Return the folder with initdb and postgres: of that major version, or the newest.

    Raises:
        BackupFailed: There is none.
    """
    found = {path.parts[-3]: path.parent for path in DEBIAN.glob("*/bin/postgres")}
    if (named := shutil.which("postgres")) is not None:
        output = subprocess.run([named, "--version"], capture_output=True, text=True).stdout
        found[output.split()[2].partition(".")[0] if len(output.split()) > 2 else ""] = Path(
            named
        ).parent
    if major is not None and major in found:
        return found[major]
    if major is None and found:
        return found[max(found, key=lambda version: int(version or 0))]
    wanted = f"PostgreSQL {major}" if major else "PostgreSQL"
    raise BackupFailed(
        f"The server programs of {wanted} are not on this machine, so the backup cannot be tried out.",
        hint="Install them (`apt-get install postgresql`), or give an empty database with --scratch-url.",
    )


@contextmanager
def _running(
    binaries: Path, folder: Path, data: Path, user: str | None, user_name: str, database: str
) -> Iterator[None]:
    command: list[str | Path] = [binaries / "postgres", "-D", data, "-k", folder]
    for option in OPTIONS:
        command += ["-c", option]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, user=user, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_until_recovered(process, folder, user_name, database)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_TIMEOUT_S)


def _wait_until_recovered(
    process: subprocess.Popen[bytes], folder: Path, user_name: str, database: str
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with psycopg.connect(_url(folder, user_name, database)) as connection:
                row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
            if row is not None and not row[0]:
                return
        except psycopg.OperationalError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise BackupFailed(
                f"PostgreSQL could not start from the backup: {_last_words(folder)}."
            )
        time.sleep(0.05)


def _last_words(folder: Path) -> str:
    lines = (folder / "log").read_text(errors="replace").splitlines()
    reported = [
        line
        for line in lines
        if ("FATAL" in line or "PANIC" in line)
        and "the database system is" not in line  # told to us, who asked too early
    ]
    reported = reported or lines or ["nothing"]
    return reported[-1].partition("FATAL:")[2].strip() or reported[-1].strip()


def _url(folder: Path, user_name: str, database: str) -> str:
    return f"postgresql://{user_name}@/{database}?host={folder}"


def _chown_to_unprivileged_user(folder: Path) -> str | None:
    """PostgreSQL refuses to run as root; None means that we are not."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)
    return user
