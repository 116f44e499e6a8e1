"""Erasures outlive a restore, and one that went wrong can be undone by going back to the moment before it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text

from guanaco.accounts import Role
from guanaco.errors import BackupFailed, InvalidSettings, StoreUnreachable
from guanaco_server.backups import postgresql
from guanaco_server.backups.making import make_backup
from guanaco_server.backups.restoring import restore_backup
from guanaco_server.backups.scratch import restored_server
from guanaco_server.backups.verifying import verify_backup
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import complete_metadata
from guanaco_server.feedback.erasures.ledger import ErasureEntry, LocalLedger, in_force, new_id
from guanaco_server.settings import Settings
from tests.conftest import migrate
from tests.fixtures.postgres import MissingPostgresError, PostgresServer, running_server
from tests.fixtures.rating import rate
from tests.fixtures.up import eventually
from tests.fixtures.world import World

ALICE, BOB = "Alicanto", "Bobolink"
SQLITE_ONLY = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Talking(World):
    """An app whose users are named by their ids."""

    async def begin(self) -> Talking:
        self.app_account = await self.account(Role.BACKEND, "app")
        await self.publish(await self.account(Role.DEVELOPER, "ada"))
        for user in (ALICE, BOB, "carol"):
            await self.hear(user)
        return self

    async def hear(self, user: str) -> str:
        return await rate(self, self.app_account, "acme-tiny_v1", user, True)

    async def erase(self, user: str) -> None:
        admin = await self.http(Role.ADMIN, "root")
        answer = await admin.post("/users/erase", json={"user_id": user})
        assert answer.json()["conversations"] >= 1, answer.text

    async def users_by_conversation(self) -> dict[str, str]:
        """Conversation and user."""
        async with self.database.read() as session:
            rows = await session.execute(text("SELECT id, user_id FROM conversations"))
            return {conversation_id: user for conversation_id, user in rows}

    async def over(self, database: Database) -> Talking:
        """The same platform with another database: its ledger is what it was."""
        found = type(self)(database)
        found.ledger.entries.update(self.ledger.entries)
        found.clock.advance(3_600)
        return found


@pytest.fixture
async def world(database: Database) -> Talking:
    return await Talking(database).begin()


async def everything(database: Database) -> str:
    found = []
    async with database.read() as session:
        for table in complete_metadata().sorted_tables:
            found += [repr(tuple(row)) for row in await session.execute(select(table))]
    return "\n".join(found)


@SQLITE_ONLY
async def test_erased_users_and_deleted_conversations_stay_away_after_restore(
    world: Talking, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path, backup_dir=tmp_path / "backups")
    made = await asyncio.to_thread(make_backup, settings)
    await world.erase(ALICE)
    (deleted,) = [
        one for one, user in (await world.users_by_conversation()).items() if user == "carol"
    ]
    backend = await world.http(Role.BACKEND, "app")
    assert (await backend.delete(f"/conversations/{deleted}")).status_code < 300
    url = world.database.engine.url.render_as_string()
    await world.database.close()
    await asyncio.to_thread(restore_backup, settings, made.path, replace=True)

    database = Database(url)
    try:
        restored = await world.over(database)
        assert ALICE in await everything(database)
        assert await restored.erasures.replay() == 2
        assert ALICE not in await everything(database)
        assert sorted((await restored.users_by_conversation()).values()) == [BOB]
        assert await restored.erasures.replay() == 0
    finally:
        await database.close()


@pytest.mark.both_databases
async def test_who_came_back_after_an_erasure_keeps_what_came_after(world: Talking) -> None:
    """The erasure is one that this database has not seen: it was entered in the ledger and the process died."""
    before = set(await world.users_by_conversation())
    entries = dict(world.ledger.entries)
    await world.erase(ALICE)
    (entry_id,) = set(world.ledger.entries) - set(entries)
    async with world.database.write() as session:
        await session.execute(text("DELETE FROM erasures"))
    world.clock.advance(60)
    await world.hear(ALICE)
    (kept,) = set(await world.users_by_conversation()) - before
    assert await world.erasures.replay() == 1
    assert kept in await world.users_by_conversation()
    async with world.database.read() as session:
        assert (await session.scalars(text("SELECT id FROM erasures"))).all() == [entry_id]


async def test_a_ledger_that_cannot_be_written_erases_nothing(world: Talking) -> None:
    async def refuse(_entry: ErasureEntry) -> None:
        raise StoreUnreachable("The artifact store does not answer.")

    world.ledger.add = refuse  # type: ignore[method-assign]
    admin = await world.http(Role.ADMIN, "root")
    answer = await admin.post("/users/erase", json={"user_id": ALICE})
    assert (answer.status_code, answer.json()["error"]) == (503, "store_unreachable")
    assert ALICE in (await world.users_by_conversation()).values()


async def test_an_erasure_that_is_refused_is_not_in_the_ledger(world: Talking) -> None:
    await rate(world, await world.account(Role.BACKEND, "other"), "acme-tiny_v1", ALICE, True)
    admin = await world.http(Role.ADMIN, "root")
    for user in (ALICE, "nobody"):  # of two backends; of none
        await admin.post("/users/erase", json={"user_id": user})
    assert world.ledger.entries == {}


async def test_erasures_that_were_entered_under_another_key_stop_the_start(world: Talking) -> None:
    await world.erase(ALICE)
    async with world.database.write() as session:
        await session.execute(text("DELETE FROM erasures"))
    for entry in list(world.ledger.entries.values()):
        await world.ledger.add(entry.model_copy(update={"key": "of another"}))
    with pytest.raises(InvalidSettings, match="pseudonym key is another"):
        await world.erasures.replay()


async def test_the_ledger_holds_no_name_and_survives_its_process(
    tmp_path: Path, world: Talking
) -> None:
    await world.erase(ALICE)
    (entry,) = world.ledger.entries.values()
    ledger = LocalLedger(tmp_path / "ledger")
    await ledger.add(entry)
    (path,) = (tmp_path / "ledger").iterdir()
    assert ALICE not in path.read_text()
    assert "app" not in path.read_text()
    (tmp_path / "ledger" / f".{new_id()}").write_text("half")  # of a process that was killed
    found = await LocalLedger(tmp_path / "ledger").read(await ledger.ids())
    assert in_force(found) == [entry]
    await ledger.add(ErasureEntry(id=new_id(), at=entry.at, revokes=entry.id))
    assert in_force(await ledger.read(await ledger.ids())) == []


@pytest.fixture
def archive() -> Iterator[Path]:
    """A folder that PostgreSQL's user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="guanaco-wal-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def archived_postgres(archive: Path) -> Iterator[PostgresServer]:
    if os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        pytest.skip("GUANACO_TEST_POSTGRES=skip leaves PostgreSQL out.")
    try:
        with running_server(
            wal_level="replica",
            archive_mode="on",
            archive_command=f"cp %p {archive}/.%f && mv {archive}/.%f {archive}/%f",
        ) as server:
            yield server
    except MissingPostgresError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
async def archived_world(archived_postgres: PostgresServer) -> AsyncIterator[Talking]:
    url = archived_postgres.url(archived_postgres.create())
    await asyncio.to_thread(migrate, url)
    database = Database(url)
    yield await Talking(database).begin()
    await database.close()


def archived_settings(world: Talking, archive: Path, folder: Path) -> Settings:
    url = world.database.engine.url.set(drivername="postgresql")
    return Settings(
        data_dir=folder,
        backup_dir=folder / "backups",
        backup_wal_dir=archive,
        database_url=SecretStr(url.render_as_string()),
    )


@pytest.mark.slow
@pytest.mark.postgres
async def test_the_moment_before_an_erasure_gone_wrong_comes_back(
    archived_world: Talking, archive: Path, tmp_path: Path
) -> None:
    """Alice was erased instead of Bob, Bob afterwards: Alice comes back, and Bob does not."""
    world, url = archived_world, archived_world.database.engine.url
    settings = archived_settings(world, archive, tmp_path)
    made = await asyncio.to_thread(make_backup, settings)
    assert made.document.method == "base"
    late = await world.hear(ALICE)  # after the backup: it is in the archived WAL only
    moment = await now_of(world.database)
    await world.erase(ALICE)
    (wrong,) = world.ledger.entries
    await world.erase(BOB)
    await finish_segment(world.database, archive)
    proof = await asyncio.to_thread(verify_backup, settings, made.path)
    rows = postgresql.rows_of(world.database.engine.url.render_as_string(hide_password=False))
    assert proof.is_good
    assert proof.lost_from > made.document.finished_at
    assert proof.rows == sum(rows.values())  # with those that only the archived WAL has

    place = Path(tempfile.mkdtemp(prefix="guanaco-pitr-"))
    place.chmod(0o711)
    try:
        await asyncio.to_thread(
            restore_backup, settings, made.path, pg_data=place / "data", until=moment
        )
        with restored_server(place, "postgres", url.database or "") as restored_url:
            database = Database(restored_url.replace("postgresql://", "postgresql+psycopg://"))
            try:
                restored = await world.over(database)
                await restored.ledger.add(
                    ErasureEntry(id=new_id(), at=restored.clock.now(), revokes=wrong)
                )
                assert sorted(set((await restored.users_by_conversation()).values())) == [
                    ALICE,
                    BOB,
                    "carol",
                ]
                assert await restored.erasures.replay() == 1
                assert sorted((await restored.users_by_conversation()).values()) == [
                    ALICE,
                    ALICE,
                    "carol",
                ]
                assert late in await everything(database)
                assert BOB not in await everything(database)
            finally:
                await database.close()
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.postgres
async def test_a_gap_in_the_archived_wal_is_named(
    archived_world: Talking, archive: Path, tmp_path: Path
) -> None:
    """Nothing after the gap is recovered, and none of it counts as saved."""
    world = archived_world
    settings = archived_settings(world, archive, tmp_path)
    made = await asyncio.to_thread(make_backup, settings)
    assert made.wal_problem is None
    moment = await now_of(world.database)
    names = []
    for _ in range(2):
        await world.hear(ALICE)
        names.append(await finish_segment(world.database, archive))
    proof = await asyncio.to_thread(verify_backup, settings, made.path)
    assert (proof.is_good, proof.wal_problem, proof.lost_from > moment) == (True, None, True)
    whole = proof.rows

    (archive / names[0]).rename(tmp_path / names[0])
    proof = await asyncio.to_thread(verify_backup, settings, made.path)
    assert not proof.is_good
    assert f"The segment {names[0]} is missing" in str(proof.wal_problem)
    assert proof.lost_from < moment
    assert proof.rows < whole
    restored = await asyncio.to_thread(
        restore_backup, settings, made.path, pg_data=tmp_path / "data"
    )
    assert restored.wal_problem == proof.wal_problem

    data = (tmp_path / names[0]).read_bytes()
    (archive / names[0]).write_bytes(bytes(len(data)))
    proof = await asyncio.to_thread(verify_backup, settings, made.path)
    assert f"The segment {names[0]} is damaged" in str(proof.wal_problem)

    elsewhere = settings.model_copy(update={"backup_wal_dir": tmp_path / "empty"})
    for use in (make_backup, lambda where: verify_backup(where, made.path)):
        with pytest.raises(BackupFailed, match=r"empty is no folder on this machine"):
            await asyncio.to_thread(use, elsewhere)
    (tmp_path / "empty").mkdir()
    proof = await asyncio.to_thread(verify_backup, elsewhere, made.path)
    assert "has no WAL of this backup or after it" in str(proof.wal_problem)
    made = await asyncio.to_thread(make_backup, elsewhere)
    assert "has no WAL of this backup or after it" in str(made.wal_problem)


async def now_of(database: Database) -> datetime:
    async with database.read() as session:
        found: Any = await session.scalar(text("SELECT clock_timestamp()"))
    assert isinstance(found, datetime)
    return found


async def finish_segment(database: Database, archive: Path) -> str:
    """Have what was committed archived, in a segment of that name."""
    async with database.read() as session:
        name = await session.scalar(text("SELECT pg_walfile_name(pg_switch_wal())"))
    await asyncio.to_thread(eventually, (archive / str(name)).exists, "archived segment")
    return str(name)
