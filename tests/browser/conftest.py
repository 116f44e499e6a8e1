"""A real browser before a real web server; the world behind it has everything outside in memory."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from guanaco_server.database.database import Database
from tests.browser.visiting import Site
from tests.conftest import migrate, sqlite_url
from tests.fixtures.web import WebWorld, served

expect.set_options(timeout=15_000)  # a page on a busy machine takes longer than the usual 5 s

CHROMIUM_ARGS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Its path; CI must have it, elsewhere its tests are skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is not None:
        return found
    sentence = "There is no chromium: `scripts/setup-debian chromium` installs Debian's."
    if os.environ.get("CI"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    """A database with everything in it to copy, and the time until which it tells."""
    path = tmp_path_factory.mktemp("web") / "seeded.db"
    migrate(sqlite_url(path))

    async def seed() -> datetime:
        database = Database(sqlite_url(path))
        world = WebWorld(database)
        await world.seed()
        await database.close()
        return world.clock.at

    loop = asyncio.new_event_loop()
    until = loop.run_until_complete(seed())
    loop.close()
    return path, until


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=list(CHROMIUM_ARGS)
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def site(
    browser: Browser, seeded: tuple[Path, datetime], tmp_path: Path
) -> AsyncIterator[Site]:
    template, until = seeded
    shutil.copy(template, tmp_path / "web.db")
    database = Database(sqlite_url(tmp_path / "web.db"))
    world = WebWorld(database)
    await world.resume(until)
    async with served(world) as url:
        site = Site(world, browser, url)
        yield site
        await site.close()
    await database.close()
