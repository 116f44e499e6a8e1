"""The example app in examples/chat_app does what its tutorial says, as a program of its own against a platform over a socket."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.served_app import served
from tests.fixtures.world import World

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "chat_app" / "app.py"


@asynccontextmanager
async def visitor(url: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Start the app, and visit it with a browser that keeps its cookie."""
    environment = {**os.environ, "GUANACO_URL": url, "GUANACO_API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(APP), "--port", "0", stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline()).decode()
        base = said.split()[-1]
        async with httpx.AsyncClient(base_url=base, follow_redirects=True, timeout=60) as client:
            yield client
    finally:
        process.kill()
        await process.communicate()


async def test_a_visitor_agrees_chats_and_rates(database: Database) -> None:
    world = World(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    model = await world.publish(ada)
    key = await world.key(Role.BACKEND, "nia")
    async with served(world.app) as url, visitor(url, key) as browser:
        first = await browser.get("/")
        assert "I agree" in first.text
        assert world.model_server.generations == []
        await browser.post("/say", data={"content": "before"})
        assert world.model_server.generations == [], "nothing without consent"
        greeted = await browser.post("/agree")
        assert "Ahoy! Who goes there?" in greeted.text
        early = await browser.post("/rate", data={"thumb": "up"})
        assert "The model has not replied" in early.text
        answered = await browser.post("/say", data={"content": "<b>Hello</b>"})
        assert "Hello from memory." in answered.text
        assert "&lt;b&gt;Hello&lt;/b&gt;" in answered.text
        assert model not in answered.text, "nobody is told which model it is"
        thanked = await browser.post("/rate", data={"thumb": "up", "text": "Made me smile."})
        assert "Thank you!" in thanked.text
    http = await world.http(Role.DEVELOPER, "ada")
    (rating,) = (await http.get(f"/submissions/{model}/feedback")).json()["items"]
    assert (rating["thumbs_up"], rating["text"]) == (True, "Made me smile.")


async def test_a_platform_that_is_away_is_told_in_a_sentence(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    key = await world.key(Role.BACKEND, "nia")
    async with served(world.app) as url, visitor(url, key) as browser:
        await browser.post("/agree")
        await browser.post("/say", data={"content": "Hello"})
        world.model_server.unhealthy.add(f"memory://{'acme-tiny_v1'}")
        failed = await browser.post("/say", data={"content": "Again"})
        assert "does not answer now" in failed.text
