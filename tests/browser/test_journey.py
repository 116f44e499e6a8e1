"""The whole story on the pages of a real `guanaco up`: a submission followed live, a chat, a rating, and what its developer reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from guanaco import AsyncClient
from guanaco.accounts import Role
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.browser.visiting import Visitors
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import Up, scripted

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEPLOYED_MS = 120_000
PARTS = ("trouble", "metrics", "timeline", "trends", "stress", "parameters", "chat")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ControlledHub]:
    make_tiny_repo(tmp_path / "hub" / "acme" / "tiny")
    with ControlledHub(tmp_path / "hub") as hub:
        yield hub
        hub.release()


@pytest.fixture
def platform(tmp_path: Path, hub: ControlledHub, engine_python: Path) -> Iterator[Up]:
    with scripted(tmp_path / "up", hub, engine_python) as up:
        yield up
    assert up.model_servers() == []


async def parts(page: Page) -> dict[str, str]:
    return {name: await page.locator(f"#{name}").inner_text() for name in PARTS}


async def test_watched_submission_goes_live_up_to_the_first_rating(
    browser: Browser, platform: Up, hub: ControlledHub
) -> None:
    key = await asyncio.to_thread(platform.client().create_key, "ada", Role.DEVELOPER)
    hub.hold("acme/tiny")
    async with AsyncClient(platform.base_url, key.key) as developer:
        submission = await developer.submit("acme/tiny", name="Tiny")
    visitors = Visitors(browser, platform.base_url)
    ada = await visitors.come()
    await visitors.sign_in(ada, key.key)
    page = await ada.open(f"/submissions/{submission.id}")
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator("#stress")).to_be_empty()
    await page.evaluate("window.isTheSamePage = true")
    hub.release()

    await expect(page.locator("#live")).to_have_text("ended", timeout=DEPLOYED_MS)
    await expect(page.locator("#summary")).to_contain_text("deployed")
    await expect(page.locator("#metrics")).to_contain_text("rank")
    await expect(page.locator("#stress")).to_contain_text("Stress check passed")
    await expect(page.locator("#chat")).to_contain_text(f"guanaco chat {submission.id}")
    assert await page.evaluate("window.isTheSamePage")
    watched = await parts(page)
    await page.reload()
    assert watched == await parts(page)

    user = await visitors.come()
    chat = await user.agree_and_talk()
    await user.say("Where are we flying?")
    reply = await chat.locator(".bot[data-reply] .said").last.inner_text()
    await chat.get_by_text("Add words").click()
    await chat.get_by_label("A few words, if you like").fill("She knows the way.")
    await chat.get_by_role("button", name="I liked it").click()
    await chat.get_by_text("Thank you.").wait_for()

    page = await ada.open(f"/submissions/{submission.id}/feedback")
    reading = page.locator("#reading")
    await expect(reading.locator("blockquote")).to_have_text("She knows the way.")
    await expect(reading.locator(".said").last).to_have_text(reply)
    assert ada.complaints == user.complaints == []
    await visitors.close()
