"""A sender that is killed in the middle of a delivery, and the next one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.receiver import receiving
from tests.fixtures.world import World, eventually

pytestmark = [pytest.mark.both_databases, pytest.mark.slow]

SENDER = Path(__file__).parents[1] / "fixtures" / "webhook_sender.py"


async def test_nothing_is_lost_when_the_sender_is_killed_midway(
    database: Database, database_url: str
) -> None:
    world = World(database)
    async with receiving("hang", 200) as receiver:
        http = await world.http(Role.DEVELOPER)
        await http.put("/webhook", json={"url": receiver.url})
        await http.post("/webhook/test")
        process = await asyncio.create_subprocess_exec(sys.executable, SENDER, database_url)

        async def is_sending() -> bool:
            return bool(receiver.received)

        await eventually(is_sending, within_s=30)
        process.kill()
        await process.wait()
        world.clock.at = world.clock.at.replace(year=2100)  # past the lease
        await world.notifications.sender.send_due()
        await world.notifications.sender.settled()
        [delivery] = (await http.get("/webhook")).json()["deliveries"]
    assert delivery["state"] == "delivered"
    assert len({one.id for one in receiver.received}) == 1
    assert len(receiver.received) == 2
