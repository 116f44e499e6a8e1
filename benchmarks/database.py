"""Compare PostgreSQL drivers on the statements of the chat gateway: the figures of docs/decisions/0014.

    make bench-database ARGS='--rounds=5'

The contestants are our direct connection (psycopg's libpq, no cursors), psycopg as it comes, and asyncpg, which is
installed into .venv-peers for this comparison only. All run in one process on uvloop against one durable server, and
take turns in every round, so that other load on the machine hits each alike. The client's CPU time stands beside the
elapsed time because it depends less on that load. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString, Protocol

import msgspec
import psutil
import psycopg
import uvloop
from sqlalchemy import bindparam, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.feedback_data import CONVERSATIONS, fill
from guanaco_server.chat.conversations.history import READ
from guanaco_server.chat.gateway.turns.postgresql_turns import CLAIM, end_statement
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.postgresql.direct import (
    NETWORK,
    PLANNING,
    DirectConnection,
    text_array,
)
from tests.fixtures.postgres import running_server

ASYNCPG = "asyncpg==0.32.0"
PEERS_FOLDER = Path(__file__).parents[1] / ".venv-peers" / "database"
TALKS = 4_096
BATCH = 32  # turns that share a commit under load
READ_AT_ONCE = 16
MANY_ROWS = 100_000
MESSAGE = "Hello from the lighthouse, how was the day? " * 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE: LiteralString = "SELECT id, message_count FROM conversations WHERE id = $1::text"
MANY: LiteralString = f"SELECT n::text, '{MESSAGE}' FROM generate_series(1, {MANY_ROWS}) n"
SLOW: LiteralString = "SELECT $1::text FROM pg_sleep(0.005)"
# Twenty messages each, with 140 bytes of text.
HISTORIES = f"""
INSERT INTO messages (id, conversation_id, position, sender, content, created_at, is_deleted)
SELECT id || '-h' || p, id, p, CASE p % 2 WHEN 1 THEN 'user' ELSE 'bot' END, '{MESSAGE}', now(), false
FROM conversations, generate_series(3, 20) p;
UPDATE conversations SET message_count = 20;
ANALYZE
"""


class Connection(Protocol):
    """One connection, with the parameters and rows that its driver has."""

    async def open(self) -> None: ...

    async def fetch(self, statement: LiteralString, parameters: Sequence[Any]) -> Sequence[Any]: ...

    async def close(self) -> None: ...

    def texts(self, values: Sequence[str]) -> Any: ...

    def moment(self, value: datetime) -> Any: ...


class Ours:
    """The product's own connection."""

    def __init__(self, url: str) -> None:
        self._direct = DirectConnection(url)

    async def open(self) -> None:
        await self._direct.fetch("SELECT 1", ())

    async def fetch(self, statement: LiteralString, parameters: Sequence[Any]) -> Sequence[Any]:
        return await self._direct.fetch(statement, parameters)

    async def close(self) -> None:
        await self._direct.close()

    def texts(self, values: Sequence[str]) -> Any:
        return text_array(values)

    def moment(self, value: datetime) -> Any:
        return value.isoformat()


class Psycopg:
    """psycopg's own asynchronous cursors, every statement prepared."""

    def __init__(self, url: str) -> None:
        self._conninfo = url.replace("+psycopg", "")

    async def open(self) -> None:
        self._connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, cursor_factory=psycopg.AsyncRawCursor, **NETWORK
        )
        await self._connection.execute(PLANNING)
        await self.fetch("SELECT 1", ())

    async def fetch(self, statement: LiteralString, parameters: Sequence[Any]) -> Sequence[Any]:
        cursor = await self._connection.execute(statement, parameters, prepare=True)
        return await cursor.fetchall()

    async def close(self) -> None:
        await self._connection.close()

    def texts(self, values: Sequence[str]) -> Any:
        return list(values)

    def moment(self, value: datetime) -> Any:
        return value


class Asyncpg:
    """asyncpg, every statement prepared; its own cache of statements does the same."""

    def __init__(self, url: str) -> None:
        self._dsn = url.replace("+psycopg", "")
        self._asyncpg = importlib.import_module("asyncpg")
        self._prepared: dict[str, Any] = {}

    async def open(self) -> None:
        self._connection = await self._asyncpg.connect(self._dsn, timeout=5)
        await self._connection.execute(PLANNING)
        await self.fetch("SELECT 1", ())

    async def fetch(self, statement: LiteralString, parameters: Sequence[Any]) -> Sequence[Any]:
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self._prepared[statement] = await self._connection.prepare(statement)
        rows: Sequence[Any] = await prepared.fetch(*parameters)
        return rows

    async def close(self) -> None:
        await self._connection.close()

    def texts(self, values: Sequence[str]) -> Any:
        return list(values)

    def moment(self, value: datetime) -> Any:
        return value


CONTESTANTS: dict[str, Callable[[str], Connection]] = {
    "guanaco": Ours,
    "psycopg": Psycopg,
    "asyncpg": Asyncpg,
}


@dataclass
class Measured:
    """The values of one contestant, round by round."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(each), 3) for name, each in self.values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", nargs=2, help="(a process of its own) contestant and URL")
    options = parser.parse_args()
    _install_asyncpg()
    if options.memory:
        name, url = options.memory
        print(uvloop.run(memory_kib(CONTESTANTS[name], url)))
        return
    with running_server(fsync="on", synchronous_commit="on", full_page_writes="on") as server:
        url = server.url(server.create())
        found = uvloop.run(measure(url, options.rounds))
        for name, measured in found.items():
            command = [sys.executable, "-m", "benchmarks.database", "--memory", name, url]
            measured.add("memory of a connection, KiB", float(subprocess.check_output(command)))
        orm = uvloop.run(through_sqlalchemy(url, options.rounds))
    found["psycopg"].add("memory of the import, MiB", _import_mib("psycopg"))
    found["asyncpg"].add("memory of the import, MiB", _import_mib("asyncpg"))
    for name, measured in orm.items():
        found[name].values |= measured.values
    show(found)
    print(json.dumps({"rounds": options.rounds} | {n: each.medians() for n, each in found.items()}))


async def measure(url: str, rounds: int) -> dict[str, Measured]:
    await _fill(url)
    found = {name: Measured() for name in CONTESTANTS}
    connections = {name: make(url) for name, make in CONTESTANTS.items()}
    for connection in connections.values():
        await connection.open()
        await measure_one(connection, url, type(connection), Measured())  # warm
    order = list(connections)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            await measure_one(connections[name], url, CONTESTANTS[name], found[name])
    for connection in connections.values():
        await connection.close()
    return found


async def measure_one(
    connection: Connection, url: str, make: Callable[[str], Connection], measured: Measured
) -> None:
    await connect(make, url, measured)
    await statements(connection, measured)
    for batch in (1, BATCH):
        await turns(connection, batch, measured)
    await histories(connection, measured)
    await many_rows(connection, measured)
    await cancellations(make, url, measured)


async def connect(make: Callable[[str], Connection], url: str, measured: Measured) -> None:
    started, connections = time.perf_counter(), [make(url) for _ in range(20)]
    for connection in connections:
        await connection.open()
    measured.add("connect, ms", (time.perf_counter() - started) / len(connections) * 1e3)
    for connection in connections:
        await connection.close()


async def memory_kib(make: Callable[[str], Connection], url: str) -> float:
    connections = [make(url) for _ in range(60)]
    for connection in connections[:10]:
        await connection.open()
    before = psutil.Process().memory_info().rss
    for connection in connections[10:]:
        await connection.open()
    held = (psutil.Process().memory_info().rss - before) / 50 / 1024
    for connection in connections:
        await connection.close()
    return held


async def through_sqlalchemy(url: str, rounds: int) -> dict[str, Measured]:
    """Both drivers under SQLAlchemy, as all other statements of the platform go."""
    drivers = ("psycopg", "asyncpg")
    engines = {
        name: create_async_engine(url.replace("+psycopg", f"+{name}"), pool_pre_ping=True)
        for name in drivers
    }
    found = {name: Measured() for name in drivers}
    by_key = select(ConversationRow.id).where(ConversationRow.id == bindparam("id"))
    for round_ in range(rounds + 1):
        for name, engine in engines.items():
            measured = found[name] if round_ else Measured()  # the first warms
            ids = random.sample(range(1, TALKS), 300)

            async def work(engine: AsyncEngine = engine, ids: list[int] = ids) -> None:
                for number in ids:
                    async with AsyncSession(engine) as session:
                        assert await session.scalar(by_key, {"id": _conversation(number)})

            await _timed("through SQLAlchemy, us", work, len(ids) / 1e6, measured)
    for engine in engines.values():
        await engine.dispose()
    return found


async def statements(connection: Connection, measured: Measured) -> None:
    ids = random.sample(range(1, TALKS), 1_000)

    async def work() -> None:
        for number in ids:
            assert await connection.fetch(ONE, (_conversation(number),))

    await _timed("one row by its key, us", work, len(ids) / 1e6, measured)


async def turns(connection: Connection, batch: int, measured: Measured) -> None:
    """Claim and end turns, ``batch`` of them in each statement, one commit after another."""
    rounds = 100 if batch == 1 else 30
    token = f"{random.getrandbits(100):032x}"[:32]
    numbers = random.sample(range(1, TALKS), batch)
    ids = [_conversation(number) for number in numbers]
    until = NOW + timedelta(seconds=20)

    async def work() -> None:
        for _ in range(rounds):
            parameters = (
                connection.texts(ids),
                token,
                connection.moment(NOW),
                connection.moment(until),
            )
            counts = dict(
                [(row[0], int(row[1])) for row in await connection.fetch(CLAIM, parameters)]
            )
            assert len(counts) == batch
            ended = await connection.fetch(end_statement(), _ended(counts, token))
            assert len(ended) == batch

    await _timed(f"a turn, {batch} at once, us", work, rounds * batch / 1e6, measured)


def _ended(counts: dict[str, int], token: str) -> tuple[str, str]:
    ended = [{"id": i, "token": token, "known": known, "added": 2} for i, known in counts.items()]
    messages = [
        {
            "id": f"{random.getrandbits(100):x}",
            "conversation_id": conversation_id,
            "before_last": before_last,
            "sender": sender,
            "content": MESSAGE,
            "created_at": NOW,
            "ttft_ms": 100.0,
        }
        for conversation_id in counts
        for before_last, sender in ((1, "user"), (0, "bot"))
    ]
    encode = msgspec.json.encode
    return encode(ended).decode(), encode(messages).decode()


async def histories(connection: Connection, measured: Measured) -> None:
    rounds = 40
    batches = [random.sample(range(1, TALKS), READ_AT_ONCE) for _ in range(rounds)]

    async def work() -> None:
        for batch in batches:
            ids = [_conversation(number) for number in batch]
            assert len(await connection.fetch(READ, (connection.texts(ids),))) == READ_AT_ONCE

    await _timed(f"{READ_AT_ONCE} histories, us", work, rounds / 1e6, measured)


async def many_rows(connection: Connection, measured: Measured) -> None:
    """Measure for how long the event loop does nothing else while the rows arrive."""
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            gaps.append(time.perf_counter() - before)

    ticker = asyncio.create_task(tick())
    started = time.perf_counter()
    assert len(await connection.fetch(MANY, ())) == MANY_ROWS
    measured.add(f"{MANY_ROWS:,} rows, ms", (time.perf_counter() - started) * 1e3)
    await asyncio.sleep(0)
    ticker.cancel()
    measured.add("longest stall of the loop meanwhile, ms", max(gaps) * 1e3)


async def cancellations(make: Callable[[str], Connection], url: str, measured: Measured) -> None:
    """Leave statements at random moments; the next caller must get its own row, and soon."""
    connection, wrong, failed, waits = make(url), 0, 0, []
    await connection.open()
    for number in range(40):
        left = asyncio.create_task(connection.fetch(SLOW, (f"left {number}",)))
        await asyncio.sleep(random.uniform(0, 0.007))
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left
        started = time.perf_counter()
        try:
            rows = await connection.fetch("SELECT $1::text", (f"next {number}",))
        except Exception:  # noqa: BLE001 - each driver has its own
            failed += 1
            await connection.close()
            await connection.open()
            continue
        waits.append(time.perf_counter() - started)
        wrong += rows[0][0] != f"next {number}"
    await connection.close()
    measured.add("after a cancellation, ms", statistics.median(waits or [float("nan")]) * 1e3)
    measured.add("rows of another caller", wrong)
    measured.add("failed after a cancellation", failed)


async def _timed(
    name: str, work: Callable[[], Awaitable[None]], count: float, measured: Measured
) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    await work()
    measured.add(name, (time.perf_counter() - began) / count)
    measured.add(f"{name} of CPU", (time.process_time() - cpu) / count)


async def _fill(url: str) -> None:
    database = Database(url)
    await upgrade(database)
    await fill(database, submissions=10, ratings=1, fresh=TALKS)
    async with database.write() as session:
        for statement in HISTORIES.split(";"):
            await session.execute(text(statement))
    await database.close()


def _conversation(number: int) -> str:
    return f"{CONVERSATIONS}-new-{number}"


def _install_asyncpg() -> None:
    if not (PEERS_FOLDER / "asyncpg").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", ASYNCPG]
        subprocess.run([*command, "--target", PEERS_FOLDER], check=True)
    sys.path.append(str(PEERS_FOLDER))


def _import_mib(module: str) -> float:
    """Return how many MiB importing the module adds to a Python that has imported asyncio and ssl."""
    script = f"""
import sys, asyncio, ssl, psutil
sys.path.append({str(PEERS_FOLDER)!r})
before = psutil.Process().memory_info().rss
import {module}
print((psutil.Process().memory_info().rss - before) / 1024**2)"""
    return float(subprocess.check_output([sys.executable, "-c", script]))


def show(found: dict[str, Measured]) -> None:
    names = list(dict.fromkeys(name for each in found.values() for name in each.values))
    print(f"{'median (least to most)':<40}" + "".join(f"{each:>30}" for each in found))
    for name in names:
        print(f"{name:<40}" + "".join(f"{_cell(each, name):>30}" for each in found.values()))
    ours, peer = found["guanaco"].medians(), found["asyncpg"].medians()
    print("\nasyncpg to guanaco, ratio of medians")
    for name in names:
        if ours.get(name) and peer.get(name):
            print(f"  {name:<40}{peer[name] / ours[name]:6.2f}")


def _cell(measured: Measured, name: str) -> str:
    values = measured.values.get(name)
    if not values:
        return "-"
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"


if __name__ == "__main__":
    main()
