"""The direct connection to PostgreSQL, on both event loops: nobody gets another's rows, whatever breaks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, LiteralString, TypeVar

import psycopg
import pytest
import uvloop
from psycopg import errors

from guanaco_server.database.postgresql.direct import DirectConnection, text_array
from guanaco_server.database.postgresql.libpq import LibpqConnection
from tests.fixtures.postgres import PostgresServer

pytestmark = pytest.mark.postgres
Value = TypeVar("Value")
Run = Callable[[Coroutine[Any, Any, None]], None]
DEADLINE_S = 30
PID: LiteralString = "SELECT pg_backend_pid()"
SLEEPING: LiteralString = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    loop: asyncio.AbstractEventLoop = request.param()
    yield lambda test: loop.run_until_complete(in_time(test))
    loop.close()


async def in_time(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await test


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create()
    postgres.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = on')
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def direct(url: str, run: Run) -> Iterator[DirectConnection]:
    connection = DirectConnection(url)
    yield connection
    run(connection.close())


@pytest.fixture
def other(url: str, run: Run) -> Iterator[DirectConnection]:
    connection = DirectConnection(url)
    yield connection
    run(connection.close())


async def until_asleep(other: DirectConnection) -> str:
    """The process of the statement that sleeps."""
    while not (rows := await other.fetch(SLEEPING, ())):
        await asyncio.sleep(0.01)
    return str(rows[0][0])


def test_parameters_and_rows_are_text_and_null_is_none(run: Run, direct: DirectConnection) -> None:
    async def test() -> None:
        strange = ['a"b', "c\\d", "NULL", "", "e,{f}", "ü 🦙\n"]
        statement: LiteralString = "SELECT x, $2::int + 1, $3::text FROM unnest($1::text[]) AS x"
        rows = await direct.fetch(statement, (text_array(strange), "41", None))
        assert rows == [(text, "42", None) for text in strange]
        assert await direct.fetch("SELECT 1 WHERE false", ()) == []
        assert await direct.fetch("CREATE TABLE t (n int)", ()) == []

    run(test())


def test_silent_database_is_given_up_and_asked_again(run: Run, url: str) -> None:
    async def test() -> None:
        direct = DirectConnection(url, answer_timeout_s=1)
        (process,) = (await direct.fetch(PID, ()))[0]
        os.kill(int(process), signal.SIGSTOP)
        try:
            with pytest.raises(psycopg.OperationalError, match="does not answer"):
                await direct.fetch("SELECT 1", ())
            assert await direct.fetch(PID, ()) != [(process,)]
        finally:
            os.kill(int(process), signal.SIGCONT)
            await direct.close()

    run(test())


def test_callers_at_once_get_their_own_rows(run: Run, direct: DirectConnection) -> None:
    async def ask(number: int) -> None:
        assert await direct.fetch("SELECT $1::text", (str(number),)) == [(str(number),)]

    async def test() -> None:
        await asyncio.gather(*(ask(number) for number in range(50)))

    run(test())


@pytest.mark.parametrize(
    ("statement", "parameter", "error"),
    [
        ("SELECT 1 / $1::int", "0", errors.DivisionByZero),
        ("SELECT * FROM missing WHERE id = $1", "0", errors.UndefinedTable),
        ("SELECT $1::int", "none", errors.InvalidTextRepresentation),
        ("SELECT $1::text", "a\x00b", errors.DataError),
    ],
)
def test_a_refused_statement_leaves_the_connection_as_it_was(
    run: Run,
    direct: DirectConnection,
    statement: LiteralString,
    parameter: str,
    error: type[Exception],
) -> None:
    async def test() -> None:
        before = await direct.fetch(PID, ())
        for _ in range(2):
            with pytest.raises(error):
                await direct.fetch(statement, (parameter,))
        assert await direct.fetch(PID, ()) == before

    run(test())


def test_commit_that_fails_after_sending_rows_is_an_error(
    run: Run, direct: DirectConnection
) -> None:
    async def test() -> None:
        await direct.fetch("CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)", ())
        with pytest.raises(errors.UniqueViolation):
            await direct.fetch("INSERT INTO t VALUES (1), (1) RETURNING n", ())
        assert await direct.fetch("SELECT * FROM t", ()) == []

    run(test())


def test_next_caller_gets_its_own_rows_after_one_left(
    run: Run, direct: DirectConnection, other: DirectConnection
) -> None:
    async def test() -> None:
        left = asyncio.create_task(direct.fetch("SELECT 'left', pg_sleep(60)", ()))
        waits = asyncio.create_task(direct.fetch("SELECT 'waits'", ()))
        pid = await until_asleep(other)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await waits == [("waits",)]
        assert await direct.fetch("SELECT 'next'", ()) == [("next",)]
        await other.fetch("SELECT pg_terminate_backend($1)", (pid,))

    run(test())


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_sleep(60)",
        "SELECT n, repeat('x', 100000), CASE WHEN n = 50 THEN pg_sleep(60) END FROM generate_series(1, 100) n",
    ],
    ids=["before its result", "in the middle of its result"],
)
def test_broken_connection_is_an_operational_error_and_is_replaced(
    run: Run, direct: DirectConnection, other: DirectConnection, statement: LiteralString
) -> None:
    async def test() -> None:
        broken = asyncio.create_task(direct.fetch(statement, ()))
        pid = await until_asleep(other)
        await other.fetch("SELECT pg_terminate_backend($1)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            await broken
        (found,) = await direct.fetch(PID, ())
        assert found != (pid,)

    run(test())


def test_server_that_hangs_up_is_noticed_while_idle(
    run: Run, url: str, other: DirectConnection
) -> None:
    async def test() -> None:
        made = await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True)
        connection = LibpqConnection(made)
        await connection.execute("SELECT 1", ())
        await other.fetch("SELECT pg_terminate_backend($1)", (str(made.info.backend_pid),))
        while not connection.is_closed:
            await asyncio.sleep(0.01)
        connection.close()

    run(test())


def test_what_fits_no_buffer_goes_both_ways(run: Run, direct: DirectConnection) -> None:
    async def test() -> None:
        big = "abcdefgh" * 2_000_000
        assert await direct.fetch("SELECT $1::text, 1", (big,)) == [(big, "1")]
        rows = await direct.fetch("SELECT n FROM generate_series(1, 100000) n", ())
        assert [int(number) for (number,) in rows] == list(range(1, 100_001))

    run(test())


def test_only_a_non_durable_connection_skips_waiting_for_the_disk(run: Run, url: str) -> None:
    async def test() -> None:
        for is_durable, setting in ((True, "on"), (False, "off")):
            connection = DirectConnection(url, is_durable)
            assert await connection.fetch("SHOW synchronous_commit", ()) == [(setting,)]
            await connection.close()

    run(test())
