"""Tests a submission's page: its log, its drawings, times in the reader's zone, copies, long failures."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from guanaco.accounts import Role
from guanaco.errors import Blame
from guanaco.submissions import Failure, Level, Stage
from guanaco_server.submissions.tables import SubmissionRow
from tests.browser.visiting import LLAMA_BARD, PHONE, Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWL_ID = "edsger-owl-13b_v1"
OWL = f"/submissions/{OWL_ID}"
TRACEBACK = "The model server ended.\n" + "\n".join(f"  line {number}" for number in range(40))


async def test_votes_lead_and_other_figures_fold(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open(LLAMA_BARD)
    shown = page.locator("#metrics > section > dl dt")
    await expect(shown).to_have_text(["rank", "thumbs up", "ratings, read them"])
    await expect(page.get_by_role("link", name="users back the next day")).to_be_hidden()
    await page.get_by_text("More figures").click()
    await expect(page.get_by_role("link", name="users back the next day")).to_be_visible()
    assert await visit.violations() == []
    assert visit.complaints == []


async def test_the_whole_log_is_read_searched_and_fetched(site: Site) -> None:
    for number in range(250):
        level = Level.WARNING if number % 50 == 0 else Level.INFO
        await site.world.log(OWL_ID, f"Shard {number} <b>of</b> 250.", level)
    visit = await site.visit(Role.DEVELOPER, "edsger")
    page = await visit.open(OWL)
    log = page.locator("#log")
    await expect(log).not_to_contain_text("Shard 149 ")
    await log.get_by_role("link", name="Earlier lines").click()
    await expect(log).to_contain_text("Shard 149 ")
    await log.get_by_role("link", name="Earlier lines").click()
    await expect(log).to_contain_text("Stage resolve begins.")
    await expect(log.get_by_role("link", name="Earlier lines")).to_have_count(0)
    assert await log.locator("p").count() == len(set(await log.locator("p").all_inner_texts()))
    await page.get_by_label("Level").select_option("warning")
    await expect(log.locator("p")).to_have_count(5)
    await page.get_by_label("Words in the log").fill("shard 200 <B>")
    await page.keyboard.press("Enter")
    await expect(log.locator("p")).to_have_count(1)
    await site.world.log(OWL_ID, "Does not fit.")
    await site.world.log(OWL_ID, "Shard 200 <b>again</b>.", Level.ERROR)
    await expect(log.locator("p")).to_have_count(2)
    async with page.expect_download() as fetched:
        await page.get_by_role("link", name="Download").click()
    said = (await (await fetched.value).path()).read_text()
    assert re.fullmatch(
        r"\S+ warning Shard 200 <b>of</b> 250.\n\S+ error Shard 200 <b>again</b>.\n", said
    )
    assert visit.complaints == []


async def test_the_log_is_read_and_searched_without_scripts(site: Site) -> None:
    for number in range(150):
        await site.world.log(OWL_ID, f"Shard {number}.")
    visit = await site.visit(Role.DEVELOPER, "edsger", scripts=False)
    page = await visit.open(OWL)
    await page.get_by_role("link", name="Earlier lines").click()
    await expect(page.locator("#log")).to_contain_text("Shard 49.")
    await page.get_by_label("Words in the log").fill("shard 12")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("#log p")).to_have_count(11)
    await page.get_by_label("Words in the log").fill("nothing like it")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("#log")).to_contain_text("No line matches.")


async def test_a_drawing_says_its_points_to_pointer_and_keys(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open(LLAMA_BARD)
    plot = page.locator("#trends [data-plot]").first
    said = plot.get_by_role("status")
    await plot.focus()
    await page.keyboard.press("ArrowLeft")
    newest = await said.inner_text()
    for _ in range(3):
        await page.keyboard.press("ArrowLeft")
    await expect(said).not_to_have_text(newest)
    await expect(said).to_have_text(re.compile(r"UTC: \d+\s%, \d+\s% to \d+\s%"))
    await plot.locator(".hit").last.hover()
    await expect(said).to_have_text(newest)
    bars = page.locator("#stress [data-plot]").first
    await bars.locator(".hit").first.hover()
    await expect(bars.get_by_role("status")).to_have_text(re.compile(r"\d ms: \d+ request"))
    assert await visit.violations() == []
    assert visit.complaints == []


async def test_times_are_the_readers_and_a_running_clock_runs(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "edsger", zone="Asia/Kolkata")
    page = await visit.open(OWL)
    await expect(page.locator("#zone")).to_have_text("Times are those of Asia/Calcutta.")
    at = await page.locator("#log time").first.get_attribute("datetime")
    assert at is not None
    local = await page.evaluate("at => new Date(at).toTimeString().slice(0, 8)", at)
    await expect(page.locator("#log time").first).to_have_text(local)
    assert local[3:5] != at[14:16], "half an hour apart from UTC"
    clock = page.locator("[data-since]")
    before = await clock.inner_text()
    await expect(clock).not_to_have_text(before)


async def test_commands_are_copied(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    await visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await visit.open(LLAMA_BARD)
    await page.get_by_role("button", name="Copy guanaco chat").click()
    await expect(page.get_by_role("button", name="Copy guanaco chat")).to_have_text("Copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == "guanaco chat ada-llama-bard_v1"


async def test_a_long_failure_folds(site: Site) -> None:
    async with site.world.database.write() as session:
        row = await session.get(SubmissionRow, "ada-broken_v1")
        assert row is not None
        row.failure = Failure(code="engine_ended", detail=TRACEBACK, blame=Blame.PLATFORM, stage=Stage.DEPLOY)  # fmt: skip
    visit = await site.visit(Role.DEVELOPER, "ada", size=PHONE)
    page = await visit.open("/submissions/ada-broken_v1")
    await expect(page.locator("#trouble strong")).to_have_text("The model server ended.")
    await expect(page.get_by_text("line 39")).to_be_hidden()
    await page.get_by_text("The whole message").click()
    await expect(page.get_by_text("line 39")).to_be_visible()
    assert await visit.violations() == []
    assert not await visit.is_too_wide()
