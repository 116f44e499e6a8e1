"""Ten thousand clients that connect at once, or as many as the system's limit of open files allows."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, insert, select

from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from tests.fixtures import crowd, rogue_world
from tests.fixtures.rogue_server import rogue, well
from tests.fixtures.rogue_world import Patient
from tests.fixtures.world import BOT

pytestmark = pytest.mark.slow

TALKING = 500  # a turn costs a loaded machine ten times what a connection does
AT_ONCE = 256  # replies
SPARE_FILES = 2_000  # both sides of those at the model server, and the rest of the tests


class Crowded(Patient):
    changes = {**Patient.changes, "replica_max_streams": AT_ONCE}


@pytest.fixture
def client_count() -> Iterator[int]:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield min(10_000, most - SPARE_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_each_of_ten_thousand_clients_is_answered_or_told_when(
    database: Database, client_count: int
) -> None:
    async with (
        rogue(well) as endpoint,
        rogue_world.talking(database, endpoint, make=Crowded) as (http, path, world),
    ):
        talking_count = min(TALKING, client_count)
        await open_many(database, path.rpartition("/")[2], talking_count)
        outcomes = await come(http, client_count, talking_count)
        assert set(outcomes) <= {"200 done", "503 overloaded", "200 overloaded", "held"}
        assert outcomes.get("held", 0) == client_count - talking_count
        assert outcomes["200 done"] >= min(AT_ONCE, talking_count)
        assert sum(outcomes.values()) == client_count
        assert sum(world.replicas.in_flight().values()) == 0
        answer = await http.post(f"{path}/messages", json={"content": "And now?"})
        assert answer.status_code == 200
        assert await left_over(database) == (0, talking_count + outcomes["200 done"] + 2)


async def open_many(database: Database, like: str, count: int) -> None:
    """Conversations like that one."""
    async with database.write() as session:
        row = await session.get_one(ConversationRow, like)
        copied = {
            "account_id": row.account_id,
            "submission_id": row.submission_id,
            "user_name": row.user_name,
            "bot": BOT,
            "created_at": row.created_at,
        }
        await session.execute(
            insert(ConversationRow),
            [
                {"id": f"conv_{number}", "user_id": f"user-{number}", **copied}
                for number in range(count)
            ],
        )


async def come(http: httpx.AsyncClient, count: int, talking: int) -> dict[str, int]:
    """All of them, from another process; their outcomes, counted."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(crowd.__file__)),
        str(http.base_url.host),
        str(http.base_url.port),
        key,
        str(count),
        str(talking),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    outcomes: dict[str, int] = json.loads(said)
    return outcomes


async def left_over(database: Database) -> tuple[int, int]:
    """Turns that nobody gave back, and messages."""
    async with database.read() as session:
        held = await session.scalar(
            select(func.count()).where(ConversationRow.turn_token.is_not(None))
        )
        messages = await session.scalar(select(func.count(MessageRow.id)))
    return held or 0, messages or 0
