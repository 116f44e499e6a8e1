"""Some reads go to a replica while it is up to date, to the primary otherwise, and nobody notices which."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.errors import InvalidSettings
from guanaco_server.database.database import Database
from guanaco_server.database.postgresql.replica import STALENESS_S, Freshness, is_writer
from guanaco_server.serve import require_shared
from guanaco_server.settings import Settings
from tests.conftest import migrate
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.rating import rate
from tests.fixtures.replication import running_pair
from tests.fixtures.world import World, eventually

NAME = "shop"


def test_replica_is_as_fresh_as_its_newest_position() -> None:
    freshness = Freshness(staleness_s=5)
    assert not freshness.is_fresh(0)
    freshness.note(at=10, written=100, replayed=90)
    assert not freshness.is_fresh(10)
    freshness.note(at=11, written=120, replayed=100)  # what was written at 10 is there
    assert freshness.lag_s(12) == 2
    assert freshness.is_fresh(15)
    assert not freshness.is_fresh(15.1)
    freshness.note(at=16, written=120, replayed=120)  # nothing was written since 11: idle, not late
    assert freshness.lag_s(16) == 0


def test_a_replica_that_was_promoted_is_not_read() -> None:
    freshness = Freshness()
    freshness.note(at=10, written=100, replayed=100)
    freshness.note(at=11, written=100, replayed=None)
    assert not freshness.is_fresh(11)


def test_a_replica_of_nothing_stops_the_start() -> None:
    with pytest.raises(InvalidSettings, match="database_replica_url is set"):
        require_shared(Settings(database_replica_url="postgresql://replica/db"))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    if os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        pytest.skip("GUANACO_TEST_POSTGRES=skip leaves PostgreSQL out.")
    with running_pair() as servers:
        servers[0].create(name=NAME)
        migrate(servers[0].url(NAME))
        yield servers


@pytest.fixture
async def followed(pair: tuple[PostgresServer, PostgresServer]) -> AsyncIterator[Database]:
    primary, standby = pair
    database = Database(primary.url(NAME), standby.url(NAME))
    yield database
    await database.close()


async def is_replica(database: Database) -> bool:
    async with database.read(may_be_stale=True) as session:
        return bool(await session.scalar(text("SELECT pg_is_in_recovery()")))


@pytest.mark.slow
@pytest.mark.postgres
async def test_reads_follow_the_replica_and_leave_it(
    followed: Database, pair: tuple[PostgresServer, PostgresServer]
) -> None:
    primary, standby = pair
    await eventually(lambda: is_replica(followed))
    async with followed.read() as session:  # what may not be stale
        assert not await session.scalar(text("SELECT pg_is_in_recovery()"))
    with writing():
        assert not await is_replica(followed)

    async def is_primary() -> bool:
        return not await is_replica(followed)

    standby.kill()  # no read fails
    await eventually(is_primary)
    standby.restart()
    await eventually(lambda: is_replica(followed))

    standby.execute("SELECT pg_wal_replay_pause()")  # alive, and further behind with each commit
    primary.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    await eventually(is_primary)
    standby.execute("SELECT pg_wal_replay_resume()")
    await eventually(lambda: is_replica(followed))


@pytest.mark.slow
@pytest.mark.postgres
async def test_boards_and_feedback_are_read_from_the_replica(
    followed: Database, pair: tuple[PostgresServer, PostgresServer]
) -> None:
    """A browser that wrote reads the primary; others see what was committed within the staleness."""
    world = World(followed)
    ada, app = await world.account(Role.DEVELOPER, "ada"), await world.account(Role.BACKEND, "app")
    await world.publish(ada)
    await rate(world, app, "acme-tiny_v1", "alice", True)
    await world.copies.make()
    http = await world.http(Role.DEVELOPER, "ada")
    await eventually(lambda: is_replica(followed))

    async def is_shown() -> bool:
        page = await http.get("/submissions/acme-tiny_v1/feedback")
        board = await http.get("/leaderboard")
        file = await http.get("/submissions/acme-tiny_v1/feedback/export")
        assert {page.status_code, board.status_code, file.status_code} == {200}
        return len(page.json()["items"]) == 1 and "alice" not in file.text and bool(file.text)

    await eventually(is_shown)

    pair[1].execute(
        "SELECT pg_wal_replay_pause()"
    )  # it is behind, and still fresh enough to be read
    await rate(world, app, "acme-tiny_v1", "bob", False)
    await world.copies.make()
    async with followed.read() as session:
        newest = await session.scalar(
            text("SELECT id FROM feedback ORDER BY created_at DESC LIMIT 1")
        )
    assert (await http.get(f"/feedback/{newest}")).status_code == 200
    pair[1].execute("SELECT pg_wal_replay_resume()")
    assert STALENESS_S == 5, "docs/operating.md and docs/settings.md say so"


@contextmanager
def writing() -> Iterator[None]:
    token = is_writer.set(True)
    yield
    is_writer.reset(token)
