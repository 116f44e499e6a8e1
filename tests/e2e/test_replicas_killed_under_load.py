"""Sixteen users talk through the gateway while the replicas of their model are killed in turns; with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.plain_http import plain_http
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.up import SCRIPTED_ENGINE, Up, eventually

pytestmark = [pytest.mark.engine, pytest.mark.postgres]
BOT = next(iter(BOTS.values()))
USERS = 16
REPLY = "Hello from the scripted engine."


@dataclass
class User:
    """Says one thing after another. A reply that broke off after its first token is requested again, as an app would."""

    http: httpx.AsyncClient
    conversation: str
    answered: list[str] = field(default_factory=list)
    broken: int = 0
    failed: list[str] = field(default_factory=list)

    async def talk(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            message = f"message {len(self.answered)}"
            is_answered = await self._is_answered("messages", {"content": message})
            while not is_answered:
                is_answered = await self._is_answered("regenerate", {})
            self.answered.append(message)

    async def _is_answered(self, action: str, request: dict[str, str]) -> bool:
        url = f"/conversations/{self.conversation}/{action}"
        answer = await self.http.post(url, json={**request, "stream": True})
        blocks = [block for block in answer.text.split("\n\n") if block and block[0] != ":"]
        kinds = [block.partition("\n")[0] for block in blocks]
        if kinds[-1] == "event: done":
            said = json.loads(blocks[-1].partition("data: ")[2])["content"]
            assert said == REPLY
            return True
        if kinds[0] == "event: token" and kinds[-1] == "event: error":
            self.broken += 1
        else:
            self.failed.append(answer.text)
        return False

    async def read_back(self) -> list[tuple[str, str]]:
        messages = (await self.http.get(f"/conversations/{self.conversation}")).json()["messages"]
        return [(message["sender"], message["content"]) for message in messages]


def is_busy(up: Up, submission_id: str, number: int) -> bool:
    """Return whether a replica is known to the gateway, and works on several replies."""
    found = up.replica(submission_id, number)
    known = up.replicas(submission_id)
    if found is None or len(known) < 2 or found.endpoint not in known:
        return False
    try:
        said = plain_http.get(f"{found.endpoint}/metrics").text
    except httpx.TransportError:
        return False
    running = re.search(r"num_requests_running.* (\d+)", said)
    return running is not None and int(running[1]) >= 3


async def test_no_turn_is_lost_or_fails_before_its_first_token(
    start_platform: StartPlatform, postgres: PostgresServer
) -> None:
    database = postgres.create()
    up = start_platform(
        min_replicas=2,
        scale_interval_s=0.2,
        database_url=postgres.url(database),
        engine_command=[*SCRIPTED_ENGINE, "--token-delay-ms", "40"],
    )
    submission_id, key = await asyncio.to_thread(deployed, up)
    await asyncio.to_thread(hold_any_number, postgres.url(database))
    stop = asyncio.Event()
    async with httpx.AsyncClient(
        base_url=f"{up.base_url}/api/v1",
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
        trust_env=False,
    ) as http:
        users = [User(http, await opened(http, number)) for number in range(USERS)]
        talks = [asyncio.create_task(user.talk(stop)) for user in users]
        for number, is_hung_first in ((0, False), (1, False), (0, True), (1, True)):
            busy = partial(is_busy, up, submission_id, number)
            await asyncio.to_thread(eventually, busy, "replica with replies in flight")
            victim = up.replica_pid(submission_id, number)
            if is_hung_first:
                os.kill(victim, signal.SIGSTOP)
                await more_answers(users)
            with suppress(ProcessLookupError):  # one that hung may have been replaced already
                os.kill(victim, signal.SIGKILL)
            await more_answers(users)
        stop.set()
        await asyncio.gather(*talks)
        assert [failure for user in users for failure in user.failed] == []
        assert sum(user.broken for user in users) > 0, "replies were in flight"
        for user in users:
            told = [pair for said in user.answered for pair in (("user", said), ("bot", REPLY))]
            assert await user.read_back() == told
    await asyncio.to_thread(up.stop)
    postgres.drop(database)


def deployed(up: Up) -> tuple[str, str]:
    """A submission with both its replicas, and an app's key."""
    developer = up.client(Role.DEVELOPER, "ada")
    submission = developer.wait(developer.submit("acme/tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    eventually(lambda: len(up.replicas(submission.id)) == 2, "second replica")
    with Client(up.base_url, up.admin_key) as admin:
        return submission.id, admin.create_key("app", Role.BACKEND).key


async def opened(http: httpx.AsyncClient, number: int) -> str:
    body = {"user_id": f"user-{number}", "bot": BOT.model_dump(), "consent": True}
    answer = await http.post("/conversations", json=body)
    assert answer.is_success, answer.text
    conversation: str = answer.json()["conversation_id"]
    return conversation


async def more_answers(users: list[User]) -> None:
    """Wait until as many messages as there are users have been answered since."""
    before = sum(len(user.answered) for user in users)
    async with asyncio.timeout(60):
        while sum(len(user.answered) for user in users) < before + len(users):
            await asyncio.sleep(0.02)
