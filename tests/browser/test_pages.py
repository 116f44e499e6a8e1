"""Every page in a real browser: clean, accessible, nothing from other hosts, no sideways scrolling."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.async_api import expect

from guanaco.accounts import Role
from tests.browser.visiting import (
    ADMIN_PAGES,
    DESK,
    DEVELOPER_PAGES,
    LLAMA_BARD,
    PHONE,
    PUBLIC_PAGES,
    Site,
    Visit,
)

Scheme = Literal["light", "dark"]

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]

COLOR_RULES = ("color-contrast", "link-in-text-block")  # what the scheme can change
IN_BOTH_LIGHTS = pytest.mark.parametrize("scheme", ["light", "dark"])


async def all_pages(site: Site) -> list[tuple[Role | None, str, tuple[str, ...]]]:
    """List the pages, each with the role that looks at it."""
    ada = await site.world.developer("ada")
    (rating,) = (await site.world.feedback.page(ada, "ada-llama-bard_v1", None, 1)).items
    one = f"{LLAMA_BARD}/feedback/{rating.id}"
    key, *_ = await site.world.accounts.list_keys()
    return [
        (None, "", PUBLIC_PAGES),
        (Role.DEVELOPER, "ada", (*DEVELOPER_PAGES, one)),
        (Role.ADMIN, "root", (*ADMIN_PAGES, f"/admin/keys/{key.id}/revoke")),
    ]


async def problems(visit: Visit, path: str, scheme: Scheme) -> list[str]:
    """Return what is wrong with a page. Rules that know nothing of colors are tried in the light scheme only."""
    rules = COLOR_RULES if scheme == "dark" else ()
    found = [*await visit.violations(rules), *visit.complaints, *await misfits(visit)]
    visit.complaints.clear()
    return [f"{path}: {problem}" for problem in found]


async def misfits(visit: Visit) -> list[str]:
    """Return how a page does not fit the window in which it is shown."""
    found = [f"too small to read: {text}" for text in await visit.small_letters()]
    if await visit.is_too_wide():
        found.append("scrolls sideways")
    if await visit.is_too_long():
        found.append("scrolls on after its end")
    return found


async def test_every_page_is_clean_in_both_lights_and_on_phones(site: Site) -> None:
    found = []
    for role, name, paths in await all_pages(site):
        visit = await site.visit(role, name)
        for path in paths:
            page = await visit.open(path)
            found += await problems(visit, path, "light")
            await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
            found += await problems(visit, f"{path} in the dark", "dark")
            await page.emulate_media(color_scheme="light", reduced_motion="reduce")
            await visit.resize(PHONE)
            found += [f"{path} on a phone: {problem}" for problem in await misfits(visit)]
            await visit.resize(DESK)
    assert found == []


@IN_BOTH_LIGHTS
async def test_the_chat_is_clean_and_accessible_at_every_step(site: Site, scheme: Scheme) -> None:
    await site.world.offer_character("stored")
    visit = await site.visit(scheme=scheme, size=PHONE)
    page = await visit.agree_and_talk()
    found = await problems(visit, "empty", scheme)
    await visit.say("Where are we flying tonight?")
    found += await problems(visit, "talking", scheme)
    await page.get_by_role("button", name="I liked it").click()
    await page.get_by_text("Thank you.").wait_for()
    found += await problems(visit, "rated", scheme)
    await visit.open("/chat")
    found += await problems(visit, "home", scheme)
    picture = page.locator("img.avatar")
    await expect(picture).to_have_js_property("naturalWidth", 5)
    await page.locator("li", has=picture).get_by_role("button").click()
    await expect(picture).to_have_js_property("naturalWidth", 5)
    found += await problems(visit, "a stored character", scheme)
    assert found == []


async def test_every_page_is_there_without_scripts(site: Site) -> None:
    for role, name, paths in await all_pages(site):
        visit = await site.visit(role, name, scripts=False)
        for path in paths:
            page = await visit.open(path)
            assert await page.locator("h1").count() == 1, path
        assert visit.complaints == []
    visit = await site.visit(Role.DEVELOPER, "ada", scripts=False)
    page = await visit.open(f"{LLAMA_BARD}/feedback")
    said = page.locator("blockquote, .rated .quiet").first
    first = await said.inner_text()
    await page.get_by_role("link", name="Next").click()
    await page.get_by_role("link", name="Previous").click()
    await expect(said).to_have_text(first, use_inner_text=True)
    await page.goto(f"{site.url}{LLAMA_BARD}")
    await page.get_by_role("link", name="Deactivate").click()
    await page.get_by_role("button", name="Deactivate").click()
    await page.get_by_role("button", name="Reactivate").wait_for()


async def test_what_strangers_wrote_runs_nowhere_and_breaks_nothing(site: Site) -> None:
    hostile = "</p></main><style>*{display:none}</style><script>alert(1)</script><img src=x onerror=alert(2)>"
    await site.world.rename("ada-llama-bard_v1", hostile)
    await site.world.log("ada-llama-bard_v1", hostile)
    await site.world.overwrite_messages(hostile)
    for role, paths in (
        (None, ("/", LLAMA_BARD)),
        (Role.DEVELOPER, ("/submissions", LLAMA_BARD, f"{LLAMA_BARD}/feedback")),
    ):
        visit = await site.visit(role, "ada")
        for path in paths:
            page = await visit.open(path)
            shown = page.get_by_text("alert(1)").first
            await shown.wait_for(state="attached")
            assert await page.locator("main").is_visible()
            assert await page.locator("main script, main style, main img").count() == 0
            assert visit.complaints == []
