"""Backups are whole or not there, and `guanaco backup verify` proves what it says; on both databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.errors import BackupDamaged, BackupFailed, DatabaseUnavailable, DataDirInUse
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.backups.document import fingerprint_of, seal_of
from guanaco_server.backups.folder import DOCUMENT, BackupFolder, read_backup
from guanaco_server.backups.making import MadeBackup, make_backup
from guanaco_server.backups.restoring import restore_backup
from guanaco_server.backups.verifying import verify_backup
from guanaco_server.database.database import Database
from guanaco_server.runtime.data_dir import PSEUDONYM_KEY, DataDir
from guanaco_server.settings import Settings
from tests.conftest import TEMPLATE
from tests.fixtures.artifacts import random_tensors, write_artifact
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.rating import rate
from tests.fixtures.world import World

KEY = "the-pseudonym-key-of-this-test"
ARTIFACT = "a" * 64
SQLITE_ONLY = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class BackedUp(World):
    """A competition of two submissions that is frozen, in a data folder that a platform could have."""

    async def begin(self, folder: Path) -> BackedUp:
        url = self.database.engine.url
        is_sqlite = self.database.engine.dialect.name == "sqlite"
        self.on_disk = Settings(
            data_dir=folder,
            backup_dir=folder / "backups",
            pseudonym_key=SecretStr(KEY),
            database_url=None
            if is_sqlite
            else SecretStr(url.set(drivername="postgresql").render_as_string(hide_password=False)),
        )
        write_artifact(folder / "artifacts" / ARTIFACT, random_tensors(100), key=ARTIFACT)
        ada, app = (
            await self.account(Role.DEVELOPER, "ada"),
            await self.account(Role.BACKEND, "app"),
        )
        for submission_id in ("one_v1", "two_v1"):
            await self.publish(ada, submission_id)
        admin = await self.http(Role.ADMIN, "root")
        body = {"name": "Cup", "starts_at": self.clock.now().isoformat()}
        assert (await admin.put("/competitions/cup", json=body)).status_code == 200
        for number in range(6):
            await rate(self, app, "one_v1", f"user-{number}", number % 3 > 0, competition="cup")
            await rate(self, app, "two_v1", f"user-{number}", number % 3 == 0, competition="cup")
        frozen = await admin.post("/competitions/cup/freeze")
        self.sha256 = frozen.json()["sha256"]
        return self

    async def back_up(self, **options: Any) -> MadeBackup:
        return await asyncio.to_thread(make_backup, self.on_disk, **options)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> BackedUp:
    return await BackedUp(database).begin(tmp_path)


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_backup_is_proved_by_restoring_it(world: BackedUp) -> None:
    made = await world.back_up()
    proof = await asyncio.to_thread(verify_backup, world.on_disk, made.path)
    assert proof.is_good
    assert [(one.competition, one.sha256) for one in proof.seasons] == [("cup", world.sha256)]
    assert proof.document.rows is not None
    assert proof.document.rows["feedback"] == 12
    assert (proof.artifacts, proof.missing_artifacts, proof.has_same_key) == (1, (), True)
    assert proof.lost_from == made.document.taken_at

    await LocalStore(world.on_disk.artifacts_path).delete(ARTIFACT)
    proof = await asyncio.to_thread(verify_backup, world.on_disk, made.path)
    assert (proof.is_good, proof.missing_artifacts) == (False, (ARTIFACT,))


@SQLITE_ONLY
async def test_ratings_that_differ_from_the_frozen_season_are_found(
    world: BackedUp, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "guanaco.db")) as database, database:
        database.execute(
            "UPDATE feedback SET thumbs_up = NOT thumbs_up WHERE submission_id = 'one_v1'"
        )
    made = await world.back_up()
    proof = await asyncio.to_thread(verify_backup, world.on_disk, made.path)
    assert not proof.is_good
    assert proof.seasons[0].problem is not None


@SQLITE_ONLY
async def test_backup_holds_a_concurrent_commit_whole_or_not_at_all(
    world: BackedUp, tmp_path: Path
) -> None:
    """The other writer never waits for the copy, and the copy is one moment's."""
    writer = sqlite3.connect(tmp_path / "guanaco.db", isolation_level=None)
    with closing(writer):
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE feedback SET text = 'changed'")
        made = await world.back_up()
        writer.execute("COMMIT")
    with closing(sqlite3.connect(made.path / "guanaco.db")) as copy:
        assert copy.execute("SELECT DISTINCT text FROM feedback").fetchall() == [("",)]


@SQLITE_ONLY
@pytest.mark.parametrize(
    "fault", ["flipped", "truncated", "missing", "no document", "newer", "outside", "sealed"]
)
async def test_a_damaged_backup_is_one_sentence(world: BackedUp, fault: str) -> None:
    made = await world.back_up()
    file, document = made.path / "guanaco.db", made.path / DOCUMENT
    told = json.loads(document.read_text())
    match fault:
        case "flipped":
            data = bytearray(file.read_bytes())
            data[5_000] ^= 1
            file.write_bytes(data)
        case "truncated":
            file.write_bytes(file.read_bytes()[:-1])
        case "missing":
            file.unlink()
        case "no document":
            document.unlink()
        case "newer":
            resealed(document, told | {"revision": "9999"})
        case "outside":
            told["files"][0]["path"] = "../../guanaco.db"
            resealed(document, told)
        case "sealed":
            told["files"][0]["size_bytes"] += 1
            document.write_text(json.dumps(told))
    says = {
        "flipped": "its SHA-256 differs",
        "truncated": "bytes and should have",
        "missing": "is missing",
        "no document": "is no backup",
        "newer": "are at revision 9999",
        "outside": "outside its folder",
        "sealed": "its seal differs",
    }[fault]
    for use in (verify_backup, restore_backup):
        with pytest.raises(BackupDamaged, match=says):
            await asyncio.to_thread(use, world.on_disk, made.path)  # type: ignore[arg-type]


def resealed(document: Path, told: dict[str, Any]) -> None:
    """Write the file again as somebody would who has the key."""
    seal = seal_of(json.dumps(told), KEY.encode())
    document.write_text(json.dumps(told | {"seal": seal}))


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from guanaco_server.backups.folder import BackupFolder

with BackupFolder(Path(sys.argv[1])).writing(datetime.now(UTC)) as staged:
    (staged / "guanaco.db").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
FULL = """
import resource, signal, sys
from pathlib import Path
from guanaco.errors import BackupFailed
from guanaco_server.backups.making import make_backup
from guanaco_server.settings import Settings

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
folder = Path(sys.argv[1])
try:
    make_backup(Settings(data_dir=folder, backup_dir=folder / "backups"))
except BackupFailed as error:
    print(error.detail)
"""


@SQLITE_ONLY
async def test_killed_backup_does_not_count_and_the_next_removes_it(
    world: BackedUp, tmp_path: Path
) -> None:
    folder = BackupFolder(tmp_path / "backups")
    died = await asyncio.to_thread(_python, KILLED, str(folder.root))
    assert died.returncode == -signal.SIGKILL
    assert [path.name for path in folder.root.glob(".partial-*/*")] == ["guanaco.db"]
    assert folder.finished() == []
    made = await world.back_up()
    assert folder.finished() == [made.path]
    assert not list(folder.root.glob(".partial-*"))


@pytest.mark.slow
@SQLITE_ONLY
async def test_a_file_that_cannot_grow_leaves_no_backup(world: BackedUp, tmp_path: Path) -> None:
    """The system refuses to write on, as it does when the disk is full."""
    ended = await asyncio.to_thread(_python, FULL, str(tmp_path))
    assert "guanaco.db cannot be copied to" in ended.stdout, ended.stderr
    assert [path.name for path in (tmp_path / "backups").iterdir()] == [".lock"]


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )


@SQLITE_ONLY
async def test_backup_is_private_to_its_owner_and_holds_no_secrets(
    world: BackedUp,
) -> None:
    made = await world.back_up()
    assert made.path.stat().st_mode & 0o077 == 0
    (secret,) = made.document.secrets
    assert (secret.name, secret.kept_in) == ("pseudonym_key", "GUANACO_PSEUDONYM_KEY")
    assert secret.fingerprint == fingerprint_of(KEY.encode())
    for path in made.path.rglob("*"):
        assert KEY.encode() not in path.read_bytes()


@SQLITE_ONLY
async def test_only_the_newest_backups_are_kept(world: BackedUp, tmp_path: Path) -> None:
    root = tmp_path / "backups"
    first = await world.back_up()
    older = first.path.rename(root / "20200101T000000Z")
    oldest = root / "20190101T000000Z"
    oldest.mkdir()
    (oldest / DOCUMENT).write_text((older / DOCUMENT).read_text())
    made = await world.back_up(keep=2)
    assert made.removed == (oldest,)
    assert BackupFolder(root).finished() == [older, made.path]


@SQLITE_ONLY
async def test_two_backups_are_not_written_at_once(world: BackedUp, tmp_path: Path) -> None:
    with (
        BackupFolder(tmp_path / "backups").writing(datetime.now(UTC)),
        pytest.raises(BackupFailed, match="Another backup is being written"),
    ):
        await world.back_up()


@pytest.mark.slow
@SQLITE_ONLY
async def test_a_restore_sets_aside_what_was_there(world: BackedUp, tmp_path: Path) -> None:
    made = await world.back_up()
    async with world.database.write() as session:
        await session.execute(text("DELETE FROM feedback"))
    with DataDir(tmp_path), pytest.raises(DataDirInUse):
        await asyncio.to_thread(restore_backup, world.on_disk, made.path, replace=True)
    with pytest.raises(BackupFailed, match="is there already"):
        await asyncio.to_thread(restore_backup, world.on_disk, made.path)
    await world.database.close()
    done = await asyncio.to_thread(restore_backup, world.on_disk, made.path, replace=True)
    assert done.set_aside is not None
    assert _ratings(tmp_path / "guanaco.db") == 12
    assert _ratings(done.set_aside) == 0


@SQLITE_ONLY
async def test_a_restore_under_another_key_is_refused(world: BackedUp, tmp_path: Path) -> None:
    made = await world.back_up()
    elsewhere = tmp_path / "elsewhere"
    other = world.on_disk.model_copy(update={"data_dir": elsewhere, "pseudonym_key": None})
    with pytest.raises(BackupFailed, match="pseudonym key is missing"):
        await asyncio.to_thread(restore_backup, other, made.path)
    DataDir(elsewhere).path.mkdir()
    (elsewhere / PSEUDONYM_KEY).write_text("00" * 32)
    with pytest.raises(BackupFailed, match="another one than the backup's"):
        await asyncio.to_thread(restore_backup, other, made.path)
    await asyncio.to_thread(restore_backup, other, made.path, without_key=True)
    assert _ratings(elsewhere / "guanaco.db") == 12


@SQLITE_ONLY
async def test_a_backup_of_another_kind_of_database_is_refused(world: BackedUp) -> None:
    made = await world.back_up()
    url = SecretStr("postgresql://nobody@127.0.0.1:1/none")
    other = world.on_disk.model_copy(update={"database_url": url})
    with pytest.raises(BackupFailed, match="another kind of database"):
        await asyncio.to_thread(restore_backup, other, made.path)


async def test_without_postgresql_tools_there_is_one_sentence(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        database_url=SecretStr(postgres.url("postgres").replace("+psycopg", "")),
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupFailed, match="pg_dump is not on the path"):
        await asyncio.to_thread(make_backup, settings)
    assert BackupFolder(tmp_path / "backups").finished() == []


async def test_tool_older_than_the_server_is_one_sentence(
    postgres: PostgresServer,
    migrated_postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tool is a stand-in that says what PostgreSQL's says."""
    name = migrated_postgres.create(TEMPLATE)
    (tmp_path / "pg_dump").write_text(
        "#!/bin/sh\necho 'pg_dump: error: aborting because of server version mismatch' >&2\nexit 1\n"
    )
    (tmp_path / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = Settings(
        data_dir=tmp_path, database_url=SecretStr(postgres.url(name).replace("+psycopg", ""))
    )
    with pytest.raises(BackupFailed, match="server version mismatch") as failed:
        await asyncio.to_thread(make_backup, settings)
    assert "as new as the server" in (failed.value.hint or "")
    assert BackupFolder(tmp_path / "backups").finished() == []
    postgres.drop(name)


@pytest.mark.parametrize("wal", [None, "wal"], ids=["dump", "base"])
def test_a_database_that_is_down_is_one_sentence(tmp_path: Path, wal: str | None) -> None:
    url = SecretStr(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    archived = None if wal is None else tmp_path / wal
    settings = Settings(data_dir=tmp_path, database_url=url, backup_wal_dir=archived)
    with pytest.raises(DatabaseUnavailable, match=r"does not answer: .*refused") as refused:
        make_backup(settings)
    assert "GUANACO_DATABASE_URL" in str(refused.value.hint)


def test_a_folder_that_is_no_backup_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BackupDamaged, match="is no backup"):
        read_backup(tmp_path)
    with pytest.raises(BackupDamaged, match="There is no backup in"):
        BackupFolder(tmp_path / "none").newest()


def _ratings(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute("SELECT count(*) FROM feedback").fetchone()[0])
