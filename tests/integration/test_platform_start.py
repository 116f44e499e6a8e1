"""A start waits for a database that goes away in its middle, and says so; one that stays away ends it with a sentence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy.exc import InterfaceError, OperationalError

from benchmarks.faults.proxy import NONE, Fault, FaultyProxy
from guanaco.errors import DatabaseUnavailable
from guanaco_server.database.database import Database
from guanaco_server.database.patience import StartPatience, Step
from tests.fixtures.endings import end_all
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.world import World

T = TypeVar("T")
TEMPLATE = "migrated"


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
async def test_failing_database_at_start_is_one_sentence(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[OperationalError] | type[InterfaceError],
) -> None:
    async def fail() -> None:
        raise kind("SELECT 1", {}, OSError("server closed the connection unexpectedly"))

    platform = World(database).platform
    platform.patience.longest_s = 0.0
    monkeypatch.setattr(platform.rooms.feedback.erasures, "replay", fail)
    with pytest.raises(DatabaseUnavailable, match="database does not answer: server closed"):
        async with platform.running():
            raise AssertionError("it must not have started")


async def test_nothing_waits_for_a_file_that_failed(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'guanaco.db'}")
    assert World(database).platform.patience.longest_s == 0.0
    await database.close()


class CutBeforeEachStep(StartPatience):
    """The database goes away when a step begins, with every connection, and comes back while the step fails."""

    def __init__(
        self, database: Database, proxy: FaultyProxy, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(database)
        self._loop = loop
        self.retry_s = 0.05
        self.cuts = 0
        self._proxy = proxy

    async def carry_out(self, step: Step[T], undo: Step[None] | None = None) -> T:
        self._proxy.fault = Fault(is_refusing=True)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_cut(self._proxy), self._loop))
        self.cuts += 1
        tries = 0

        async def counted() -> T:
            nonlocal tries
            tries += 1
            if tries > 1:
                self._proxy.fault = NONE
            return await step()

        try:
            return await super().carry_out(counted, undo)
        finally:
            self._proxy.fault = NONE


async def _cut(proxy: FaultyProxy) -> None:
    proxy.cut()


@contextmanager
def in_a_thread(socket: str) -> Iterator[tuple[FaultyProxy, int, asyncio.AbstractEventLoop]]:
    """Yield a proxy with a loop of its own, and its port: DBOS is launched in the platform's, which it holds up."""
    proxy = FaultyProxy(lambda: asyncio.open_unix_connection(socket))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(listening, loop).result()
    try:
        yield proxy, server.sockets[0].getsockname()[1], loop
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_cut(proxy), loop).result()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.postgres
@pytest.mark.parametrize("role", ["api", "worker", "all"])
async def test_start_waits_for_a_database_that_goes_away_midway(
    migrated_postgres: PostgresServer, role: str
) -> None:
    name = migrated_postgres.create(TEMPLATE)
    with in_a_thread(f"{migrated_postgres.folder}/.s.PGSQL.5432") as (proxy, port, loop):
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}"
        database = Database(url)
        platform = World(database, role=role, database_url=url).platform
        platform.patience = patience = CutBeforeEachStep(database, proxy, loop)
        async with platform.running():
            assert await database.is_up()
        assert patience.cuts > 3
        await end_all()
        await database.close()
    migrated_postgres.drop(name)
