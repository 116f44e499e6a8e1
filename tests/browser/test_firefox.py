"""Tests the pages in Firefox: clean, accessible, no sideways scrolling, and what people do most, by keyboard."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco_server.deployments.model_servers.memory import Script
from tests.browser.marionette import ENTER, Firefox
from tests.browser.visiting import (
    ADMIN_PAGES,
    AXE,
    DEVELOPER_PAGES,
    LLAMA_BARD,
    PUBLIC_PAGES,
    Site,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

DESK = (1280, 860)
NARROW = (450, 844)  # no window of Firefox is narrower
LAST = "[...document.querySelectorAll('.bot[data-reply] .said')].at(-1)?.textContent"
DONE = "document.querySelector('.bot[data-reply]:last-child:not(.writing) .tools')"
TOO_WIDE = "const root = document.documentElement; return root.scrollWidth > root.clientWidth;"
VIOLATIONS = """
const done = arguments[arguments.length - 1];
axe.run({ resultTypes: ["violations"] }).then(({ violations }) => done(
  violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)} ${one.nodes[0].failureSummary}`)
), (error) => done([String(error)]));
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def firefox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Firefox]:
    """CI must have it, elsewhere its tests are skipped."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        sentence = "There is no firefox: `scripts/setup-debian firefox-esr` installs Debian's."
        if os.environ.get("CI"):
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
    firefox = await Firefox.start(program, tmp_path_factory.mktemp("firefox"))
    yield firefox
    await firefox.close()


async def sign_in(firefox: Firefox, site: Site, role: Role, name: str) -> None:
    await firefox.call("WebDriver:DeleteAllCookies")
    await firefox.open(f"{site.url}/signin")
    await firefox.type("//input[@id='key']", await site.world.key(role, name) + ENTER)
    await firefox.wait("document.querySelector('.account button')")
    await firefox.wait("document.readyState === 'complete'")


async def test_pages_are_clean_and_accessible(firefox: Firefox, site: Site) -> None:
    wrong: list[str] = []
    await firefox.open(site.url)
    await firefox.call("WebDriver:DeleteAllCookies")
    await firefox.complaints(site.url)
    for role, name, paths in (
        (None, "", PUBLIC_PAGES),
        (Role.DEVELOPER, "ada", DEVELOPER_PAGES),
        (Role.ADMIN, "root", ADMIN_PAGES[:1]),
    ):
        if role is not None:
            await sign_in(firefox, site, role, name)
        for path in paths:
            await firefox.resize(*DESK)
            await firefox.open(site.url + path)
            found = await firefox.run_until_done(f"{AXE};\n{VIOLATIONS}")
            if await firefox.run(TOO_WIDE):
                found.append("scrolls sideways")
            await firefox.resize(*NARROW)
            if await firefox.run(TOO_WIDE):
                found.append("scrolls sideways in a narrow window")
            found += await firefox.complaints(site.url)
            wrong += [f"{path}: {one}" for one in found]
    assert wrong == []


async def test_a_beta_user_chats_by_keyboard(firefox: Firefox, site: Site) -> None:
    await firefox.resize(*NARROW)
    await site.world.offer_character("stored")
    await firefox.open(f"{site.url}/chat")
    await firefox.click("//button[contains(., 'I agree')]")
    await firefox.wait("document.querySelector('img.avatar')?.naturalWidth === 5")
    await firefox.click("//li[.//img]//button")
    await firefox.wait("document.querySelector('.chat-head img.avatar')?.naturalWidth === 5")
    await firefox.open(f"{site.url}/chat")
    await firefox.click("//button[contains(., 'to Captain Marlowe')]")
    await firefox.type("//textarea[@id='content']", "مرحبا")
    await firefox.wait("getComputedStyle(document.getElementById('content')).direction === 'rtl'")
    await firefox.run("document.getElementById('content').value = '';")
    await firefox.type("//textarea[@id='content']", f"Ahoy{ENTER}")
    await firefox.wait("document.querySelector('.bot[data-reply]:not(.writing) .tools')")
    said = await firefox.run("return [...document.querySelectorAll('.said')].at(-1).textContent;")
    assert said == "Hello from memory."
    await firefox.click("//button[@title='I liked it']")
    await firefox.wait("document.querySelector('#asked').textContent.startsWith('Thank you')")
    assert await firefox.complaints(site.url) == []


@pytest.mark.parametrize("size", [DESK, NARROW], ids=["desk", "phone"])
async def test_a_chat_is_stopped_swiped_edited_and_resumed(
    firefox: Firefox, site: Site, size: tuple[int, int]
) -> None:
    rules = {"name": "Open", "starts_at": "2000-01-01T00:00:00Z", "duels": {"battles": True}}
    await site.world.competitions.put("open", CompetitionRequest.model_validate(rules))
    await site.world.routing.refresh()
    go_on = asyncio.Event()
    site.world.model_server.scripts = [
        Script(("North,", " sailor."), go_on=asyncio.Event()),
        Script(("*South* **by** `west`.",)),
        Script(("West,", " then."), go_on=go_on),
        *(Script((word, " more"), go_on=asyncio.Event()) for word in ("Port", "Star")),
    ]
    await firefox.resize(*size)
    await firefox.call("WebDriver:DeleteAllCookies")
    await firefox.open(f"{site.url}/chat")
    await firefox.complaints(site.url)
    await firefox.click("//button[contains(., 'I agree')]")
    await firefox.click("//button[contains(., 'to Captain Marlowe')]")
    await firefox.type("//textarea[@id='content']", f"Where to?{ENTER}")
    await firefox.wait(f"{LAST} === 'North,'")
    await firefox.click("//button[@id='stop']")
    await firefox.wait(f"{DONE} && {LAST} === 'North,'")
    await firefox.click("//form[@id='regenerate']//button")
    await firefox.wait("document.querySelector('.said em, .said strong')")
    await firefox.wait(f"{DONE} && document.body.textContent.includes('2 of 2')")
    await firefox.click("//button[@aria-label='Previous reply']")
    await firefox.wait(f"{LAST} === 'North,'")
    await firefox.click("//details[@class='edit']/summary")
    await firefox.run("document.getElementById('rewritten').value = '';")
    await firefox.type("//textarea[@id='rewritten']", "Whither?")
    await firefox.click("//button[text()='Save and send']")
    await firefox.wait(f"{LAST} === 'West,'")
    await firefox.open(await firefox.run("return location.href;"))
    await firefox.wait(f"{LAST} === 'West,'")
    go_on.set()
    await firefox.wait(f"{DONE} && {LAST} === 'West, then.'")
    await firefox.type("//textarea[@id='content']", "And now?")
    await firefox.click("//button[@id='battle']")
    await firefox.wait(
        "/Port.*Star|Star.*Port/s.test(document.querySelector('.sides')?.textContent)"
    )
    await firefox.click("//button[@id='stop']")
    await firefox.wait("document.activeElement.value === 'a'")
    assert await firefox.run(TOO_WIDE) is False
    await firefox.click("//button[text()='The first']")
    await firefox.wait("!document.querySelector('.which')")
    assert await firefox.complaints(site.url) == []


async def test_a_changed_rating_keeps_its_words(firefox: Firefox, site: Site) -> None:
    await firefox.resize(*NARROW)
    await firefox.call("WebDriver:DeleteAllCookies")
    await firefox.open(f"{site.url}/chat")
    await firefox.click("//button[contains(., 'I agree')]")
    await firefox.click("//button[contains(., 'to Captain Marlowe')]")
    await firefox.type("//textarea[@id='content']", f"Ahoy{ENTER}")
    await firefox.wait(f"{DONE} && {LAST} === 'Hello from memory.'")
    await firefox.click("//form[@id='rating']//summary")
    await firefox.type("//textarea[@id='words']", "She knows the way.")
    await firefox.click("//button[@title='I liked it']")
    await firefox.wait("document.querySelector('[value=up][aria-pressed]')")
    await firefox.click("//button[@title='I did not like it']")
    await firefox.wait("document.querySelector('[value=down][aria-pressed]')")
    assert (
        await firefox.run("return document.getElementById('words').value;") == "She knows the way."
    )


async def test_the_board_is_sorted_filtered_and_compared(firefox: Firefox, site: Site) -> None:
    await firefox.resize(*NARROW)
    await firefox.open(f"{site.url}/?sort=newest&developer=ada")
    await firefox.run("document.getElementById('sort').value = 'votes';")
    await firefox.click("//form[contains(@class, 'filters')]//button")
    await firefox.wait("location.search.includes('sort=votes')")
    await firefox.resize(*DESK)
    first = "document.querySelector('tbody .name, tbody th, tbody td a').textContent"
    before = await firefox.run(f"return {first};")
    await firefox.click("//thead//a[text()='Votes']")
    await firefox.wait("location.search.includes('order=reverse')")
    await firefox.wait(f"document.readyState === 'complete' && {first} !== {json.dumps(before)}")
    link = await firefox.run("return document.querySelector('a[download]').getAttribute('href');")
    assert "sort=votes" in link
    assert "order=reverse" in link
    assert "developer=ada" in link
    for name in ("Paper Lantern 3B", "Llama Bard"):
        await firefox.click(f"//input[@aria-label='Compare {name}']")
    await firefox.click("//button[text()='Compare two']")
    await firefox.wait("/ beside /.test(document.querySelector('h1').textContent)")
    await firefox.resize(*NARROW)
    assert await firefox.run(TOO_WIDE) is False


async def test_a_form_comes_back_when_the_session_has_ended(firefox: Firefox, site: Site) -> None:
    await firefox.resize(*NARROW)
    await sign_in(firefox, site, Role.DEVELOPER, "ada")
    await firefox.open(f"{site.url}/submissions/new")
    await firefox.type("//input[@id='repo']", "acme/new-model")
    await firefox.call("WebDriver:DeleteAllCookies")
    await firefox.click("//main//button[text()='Submit']")
    await firefox.wait("document.querySelector('[role=status]')?.textContent.includes('is kept')")
    await firefox.type("//input[@id='key']", await site.world.key(Role.DEVELOPER, "ada") + ENTER)
    await firefox.wait("document.activeElement.textContent === 'Go on with the form'")
    await firefox.click("//button[text()='Go on with the form']")
    await firefox.wait("document.getElementById('repo')?.value === 'acme/new-model'")
    await firefox.click("//main//button[text()='Submit']")
    await firefox.wait("document.querySelector('h1').textContent === 'new-model'")
    assert await firefox.complaints(site.url) == []


async def test_ratings_are_read_by_keys_and_found(firefox: Firefox, site: Site) -> None:
    await sign_in(firefox, site, Role.DEVELOPER, "ada")
    for size in (DESK, NARROW):
        await firefox.resize(*size)
        await firefox.open(f"{site.url}{LLAMA_BARD}/feedback")
        first = await firefox.run("return document.querySelector('#ratings a').dataset.id;")
        await firefox.type("//body", "j")
        await firefox.wait(
            f"!document.querySelector('#ratings [data-id=\"{first}\"][aria-current]')"
        )
        await firefox.wait("document.querySelector('#ratings [aria-current]')")
        await firefox.type("//input[@id='text']", f"the island{ENTER}")
        await firefox.wait("document.querySelector('#ratings mark')?.textContent === 'the island'")
        assert await firefox.run(TOO_WIDE) is False
    assert await firefox.complaints(site.url) == []


async def test_a_log_is_followed_and_a_drawing_read_by_arrows(firefox: Firefox, site: Site) -> None:
    await sign_in(firefox, site, Role.DEVELOPER, "edsger")
    await firefox.open(f"{site.url}/submissions/edsger-owl-13b_v1")
    await firefox.wait("document.getElementById('live').textContent === 'live'")
    await site.world.log("edsger-owl-13b_v1", "Streamed 12 of 26 GB.")
    await firefox.wait("document.getElementById('log').textContent.includes('12 of 26 GB')")
    await sign_in(firefox, site, Role.DEVELOPER, "ada")
    await firefox.open(site.url + LLAMA_BARD)
    await firefox.type("//*[@id='trends']//*[@data-plot]", "\ue012")
    await firefox.wait(
        "/UTC|GMT/.test(document.querySelector('#trends [role=status]').textContent)"
    )
    assert await firefox.complaints(site.url) == []
