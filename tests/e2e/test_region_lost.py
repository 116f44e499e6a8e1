"""A region is lost while people chat: the second one serves from its own PostgreSQL, and knows all that was acknowledged."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.replication import commit_on_both, running_pair
from tests.fixtures.up import Up

pytestmark = [pytest.mark.engine, pytest.mark.postgres, pytest.mark.slow]
BOT = next(iter(BOTS.values()))
USERS, ROUNDS = 8, 3
NAME = "guanaco"


@dataclass
class Acknowledged:
    """The promises that a region gave its clients: (conversation, what the user said), and rated conversations."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    ratings: dict[str, bool] = field(default_factory=dict)


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    if os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        pytest.skip("GUANACO_TEST_POSTGRES=skip leaves PostgreSQL out.")
    with running_pair() as servers:
        servers[0].create(name=NAME)
        commit_on_both(servers[0])
        yield servers


async def test_nothing_acknowledged_is_lost_with_a_region(
    pair: tuple[PostgresServer, PostgresServer],
    start_platform: StartPlatform,
    tmp_path: Path,
) -> None:
    primary, standby = pair
    shared = {
        "artifacts_dir": str(tmp_path / "artifacts"),
        "pseudonym_key": "of both regions",
        "lifeline_grace_s": 1,
    }
    first = await asyncio.to_thread(
        partial(start_platform, database_url=primary.url(NAME), **shared)
    )
    key = await asyncio.to_thread(deployed, first)
    await asyncio.to_thread(hold_any_number, primary.url(NAME))
    told = Acknowledged()
    async with asyncio.TaskGroup() as users:
        talks = [users.create_task(talk(first, key, told, number)) for number in range(USERS)]
        while len(told.turns) < USERS * ROUNDS or len(told.ratings) < USERS:
            await asyncio.sleep(0.01)
        lose(first, primary)  # in the middle of it
        for one in talks:
            one.cancel()

    (tmp_path / "up1").mkdir()  # the second platform's folder, with the admin key of both
    await asyncio.to_thread(shutil.copy, first.folder / "profile.json", tmp_path / "up1")
    began = time.monotonic()
    await asyncio.to_thread(standby.execute, "SELECT pg_promote()")
    second = await asyncio.to_thread(
        partial(start_platform, database_url=standby.url(NAME), **shared)
    )
    async with client_of(second, key) as http:
        answered = await first_reply(http, told.turns[0][0])
        took_s = time.monotonic() - began
        assert answered
        for conversation in {conversation for conversation, _ in told.turns}:
            kept = (await http.get(f"/conversations/{conversation}")).json()["messages"]
            said = [one["content"] for one in kept if one["sender"] == "user"]
            told_of_it = [words for where, words in told.turns if where == conversation]
            assert [words for words in said if words in told_of_it] == told_of_it
        for conversation, thumbs_up in told.ratings.items():
            rating = (await http.get(f"/conversations/{conversation}/feedback")).json()
            assert rating["thumbs_up"] is thumbs_up
    print(
        f"\n{len(told.turns)} turns, {len(told.ratings)} ratings kept; served after {took_s:.1f} s"
    )


def lose(up: Up, primary: PostgresServer) -> None:
    """kill -9 of everything in the region: the platform, its model servers, its database with all its processes."""
    victims = up.model_servers()
    up.kill()
    for process in victims:
        process.kill()
    os.kill(primary.process.pid, signal.SIGKILL)
    primary.process.wait()


def deployed(up: Up) -> str:
    developer = up.client(Role.DEVELOPER, "ada")
    submission = developer.wait(developer.submit("acme/tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    with Client(up.base_url, up.admin_key) as admin:
        return admin.create_key("app", Role.BACKEND).key


def client_of(up: Up, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"{up.base_url}/api/v1",
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        trust_env=False,
    )


async def talk(up: Up, key: str, told: Acknowledged, number: int) -> None:
    """Open conversations, talk and rate, until nobody answers any more."""
    async with client_of(up, key) as http:
        for round_number in range(1_000):
            try:
                body = {"user_id": f"user-{number}", "bot": BOT.model_dump(), "consent": True}
                opened = await http.post("/conversations", json=body)
                conversation = opened.json()["conversation_id"]
                for turn in range(2):
                    words = f"{number} says {round_number}.{turn}"
                    said = await http.post(
                        f"/conversations/{conversation}/messages", json={"content": words}
                    )
                    if said.is_success:
                        told.turns.append((conversation, words))
                thumbs_up = round_number % 2 == 0
                rated = await http.post(
                    f"/conversations/{conversation}/feedback",
                    json={"thumbs_up": thumbs_up, "text": ""},
                )
                if rated.status_code == 201:
                    told.ratings[conversation] = thumbs_up
            except (httpx.TransportError, KeyError):
                return


async def first_reply(http: httpx.AsyncClient, conversation: str) -> bool:
    async with asyncio.timeout(120):
        while True:
            said = await http.post(
                f"/conversations/{conversation}/messages", json={"content": "Are you there?"}
            )
            if said.is_success:
                return True
            await asyncio.sleep(0.1)
