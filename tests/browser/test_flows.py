"""Tests what people do on the pages, with mouse and keyboard."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, expect

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco_server.deployments.model_servers.memory import Script
from tests.browser.visiting import DESK, LLAMA_BARD, PHONE, Site
from tests.fixtures.world import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWL = "/submissions/edsger-owl-13b_v1"
ENTER_AT_ONCE = """
new MutationObserver((_, observer) => {
  const content = document.getElementById("content");
  if (!content) return;
  observer.disconnect();
  content.value = "Ahoy";
  content.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
}).observe(document, { childList: true, subtree: true });
"""
IS_HIDDEN = """() => {
  const end = document.getElementById("messages").lastElementChild.getBoundingClientRect().bottom;
  return end > document.getElementById("compose").getBoundingClientRect().top;
}"""


async def test_signing_in_and_out(site: Site) -> None:
    visit = await site.visit()
    page = await visit.open("/submissions")
    assert "/signin?next=/submissions" in page.url
    await page.get_by_label("API key").fill("gk_wrong_key")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("That key is wrong, or was revoked.")
    await page.get_by_label("API key").fill(await site.world.key(Role.DEVELOPER, "ada"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="My submissions")).to_be_visible()
    await expect(page).to_have_url(f"{site.url}/submissions")
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    await page.goto(f"{site.url}/submissions")
    assert "/signin" in page.url


async def test_a_stranger_submits_from_the_form(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open("/submissions/new")
    await page.get_by_label("Repo").fill("acme/new-model")
    await page.get_by_text("Prompt, sampling and precision").click()
    await page.get_by_label("temperature").fill("0.7")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("heading", name="new-model")).to_be_visible()
    await expect(page.locator("#summary")).to_contain_text("queued")
    await expect(page.locator("#log")).to_contain_text("Submitted acme/new-model.")


async def test_a_form_comes_back_when_the_session_has_ended(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada", size=PHONE)
    page = await visit.open("/submissions/new")
    await page.get_by_label("Repo").fill("acme/new-model")
    await page.get_by_text("Prompt, sampling and precision").click()
    await page.get_by_label("temperature").fill("0.7")
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("status")).to_contain_text("What you filled in is kept")
    assert await visit.violations() == []
    await page.get_by_label("API key").fill(await site.world.key(Role.DEVELOPER, "ada"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Go on with the form")).to_be_focused()
    assert await visit.violations() == []
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Repo")).to_have_value("acme/new-model")
    await page.get_by_text("Prompt, sampling and precision").click()
    await expect(page.get_by_label("temperature")).to_have_value("0.7")
    await page.get_by_label("temperature").fill("7")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_label("temperature")).to_have_accessible_description(
        "It must be 2 or less."
    )
    await page.get_by_label("temperature").fill("0.7")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("heading", name="new-model")).to_be_visible()


async def test_the_log_and_the_stages_follow_live(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "edsger")
    page = await visit.open(OWL)
    await expect(page.locator("#live")).to_have_text("live")
    await site.world.log("edsger-owl-13b_v1", "Streamed 12 of 26 GB <b>so far</b>.")
    await expect(page.locator("#log")).to_contain_text("Streamed 12 of 26 GB <b>so far</b>.")
    edsger = await site.world.developer("edsger")
    await site.world.submissions.cancel(edsger, "edsger-owl-13b_v1")
    await expect(page.locator("#summary")).to_contain_text("cancelled")
    await expect(page.locator("#live")).to_have_text("ended")
    await expect(page.get_by_role("link", name="Redeploy")).to_be_visible()
    assert visit.complaints == []


async def test_a_submission_is_torn_down_only_after_a_question(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open(LLAMA_BARD)
    await page.get_by_role("link", name="Tear down").click()
    await page.get_by_role("link", name="Leave it as it is").click()
    await expect(page.locator("#summary")).to_contain_text("deployed")
    await page.get_by_role("link", name="Tear down").click()
    await page.get_by_role("button", name="Tear down").click()
    await expect(page.locator("#summary")).to_contain_text("torn down")


async def test_beta_user_chats_and_rates_without_seeing_a_model_name(site: Site) -> None:
    script = Script(pieces=("North,", " sailor."))
    site.world.model_server.scripts = [script, Script(pieces=("South,", " then."))]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await expect(page.get_by_text("How was it?")).to_be_hidden()
    await visit.say("Where are we flying?")
    await expect(page.locator(".said").last).to_have_text("North, sailor.")
    seen = [await page.content()]
    await page.get_by_role("button", name="Another reply").click()
    await expect(page.locator(".said").last).to_have_text("South, then.")
    await page.get_by_text("Add words").click()
    await page.get_by_label("A few words, if you like").fill("She knows the way.")
    await expect(page.get_by_label("may be shown on the model's public page")).not_to_be_checked()
    await page.get_by_label("may be shown on the model's public page").check()
    await page.get_by_role("button", name="I liked it").click()
    await expect(page.get_by_text("Thank you.")).to_be_visible()
    await page.get_by_role("button", name="I did not like it").click()
    await expect(page.locator(".rating button[aria-pressed]")).to_have_attribute("value", "down")
    assert await page.locator(".said").all_inner_texts() == [
        "Welcome aboard the Thistle, sailor! Quick: did you see any geese on the dock?",
        "Where are we flying?",
        "South, then.",
    ]
    seen.append(await page.content())
    await visit.open("/chat")
    seen.append(await page.content())
    told = "".join([*seen, *(str(answer.headers) for answer in visit.answers)])
    names = [row.name for row in (await site.world.leaderboard.leaderboard()).rows]
    ids = [row.submission_id for row in (await site.world.leaderboard.leaderboard()).rows]
    assert [name for name in names + ids if name in told] == []
    assert visit.complaints == []


async def test_failed_reply_says_so_and_keeps_the_message_once(site: Site) -> None:
    site.world.model_server.scripts = [Script(pieces=("Nor",), fault="It died."), Script()]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Ahoy")
    await page.keyboard.press("Enter")
    await expect(page.locator("#problem")).to_contain_text("Nobody can answer right now.")
    await expect(page.locator(".user .said")).to_have_text(["Ahoy"])
    await expect(page.get_by_label("Your message")).to_have_value("")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".said").last).to_have_text("Hello from memory.")


async def test_a_reply_survives_a_reload_in_its_middle(site: Site) -> None:
    go_on = asyncio.Event()
    site.world.model_server.scripts = [Script(pieces=("North,", " sailor."), go_on=go_on)]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Where are we flying?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".said").last).to_have_text("North,")
    await page.reload()
    await expect(page.locator(".user .said")).to_have_text(["Where are we flying?"])
    await expect(page.locator(".said").last).to_have_text("North,")
    go_on.set()
    await expect(page.locator(".said").last).to_have_text("North, sailor.")
    await page.reload()
    await expect(page.locator(".message")).to_have_count(3)
    assert visit.complaints == []


async def test_a_reply_is_stopped_swiped_judged_and_its_question_edited(site: Site) -> None:
    site.world.model_server.scripts = [
        Script(pieces=("North,", " sailor."), go_on=asyncio.Event()),
        Script(pieces=("South.",)),
        Script(pieces=("West.",)),
    ]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    last = page.locator(".bot[data-reply] .said").last
    await page.get_by_label("Your message").fill("Where to?")
    await page.keyboard.press("Enter")
    await expect(last).to_have_text("North,")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(last).to_have_text("North,")
    await page.get_by_role("button", name="Another reply").click()
    await expect(last).to_have_text("South.")
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await page.get_by_role("button", name="Previous reply").click()
    await expect(last).to_have_text("North,")
    await expect(page.get_by_role("button", name="Next reply")).to_be_focused()
    good = page.get_by_role("button", name="A good reply")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await page.reload()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "false")
    await page.get_by_text("Edit").click()
    await page.get_by_label("New wording").fill("Whither?")
    await page.get_by_role("button", name="Save and send").click()
    await expect(last).to_have_text("West.")
    await expect(page.locator(".user .said")).to_have_text(["Whither?"])
    await page.reload()
    await expect(page.locator(".message .said")).to_have_count(3)
    assert visit.complaints == []


async def allow_battles(site: Site) -> None:
    rules = {"name": "Open", "starts_at": "2000-01-01T00:00:00Z", "duels": {"battles": True}}
    await site.world.competitions.put("open", CompetitionRequest.model_validate(rules))
    await site.world.routing.refresh()


async def test_two_answers_stand_side_by_side_and_one_is_chosen(site: Site) -> None:
    await allow_battles(site)
    site.world.model_server.scripts = [Script(pieces=("Port **side**.",)), Script(pieces=("Starboard.",))]  # fmt: skip
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Which way?")
    await page.get_by_role("button", name="Two answers").click()
    first, second = page.get_by_label("First answer"), page.get_by_label("Second answer")
    await expect(first).to_be_visible()
    left, right = await first.bounding_box(), await second.bounding_box()
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"], "side by side"
    assert await visit.violations() == []
    await expect(page.get_by_role("button", name="The first")).to_be_focused()
    kept, gone = await second.inner_text(), await first.inner_text()
    await page.get_by_role("button", name="The second").click()
    await expect(page.get_by_text("Which is better?")).to_have_count(0)
    await expect(page.locator(".bot[data-reply]").last).to_contain_text(kept)
    await expect(page.get_by_text(gone)).to_have_count(0)
    await visit.say("And then?")
    assert visit.complaints == []


async def test_a_battle_survives_a_reload_and_is_stopped(site: Site) -> None:
    await allow_battles(site)
    go_on = asyncio.Event()
    site.world.model_server.scripts = [Script((word, " more"), go_on=go_on) for word in ("Port", "Star")]  # fmt: skip
    visit = await site.visit(size=PHONE)
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Which way?")
    await page.get_by_role("button", name="Two answers").click()
    sides = page.locator(".battle .said")
    await expect(sides.filter(has_text=re.compile("Port|Star"))).to_have_count(2)
    await page.reload()
    await expect(page.locator(".user .said")).to_have_text(["Which way?"])
    await expect(sides.filter(has_text=re.compile("Port|Star"))).to_have_count(2)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="The first")).to_be_focused()
    assert sorted(await sides.all_inner_texts()) == ["Port", "Star"]
    await page.get_by_role("button", name="The first").click()
    await expect(page.locator(".message")).to_have_count(3)
    assert visit.complaints == []


@pytest.mark.parametrize("button", ["Send", "Two answers"])
async def test_words_that_find_no_connection_are_given_back(site: Site, button: str) -> None:
    await allow_battles(site)
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.context.set_offline(True)
    await page.get_by_label("Your message").fill("Ahoy")
    await page.get_by_role("button", name=button).click()
    await expect(page.locator("#problem")).to_contain_text("The connection broke.")
    await expect(page.get_by_label("Your message")).to_have_value("Ahoy")
    await expect(page.locator(".user")).to_have_count(0)
    await page.context.set_offline(False)
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()


async def test_what_the_server_says_to_a_vote_is_shown(site: Site) -> None:
    await allow_battles(site)
    site.world.model_server.scripts = [Script(("Port.",)), Script(("Starboard.",))]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Which way?")
    await page.get_by_role("button", name="Two answers").click()
    first = page.get_by_role("button", name="The first")
    await first.evaluate("button => { button.value = 'nonsense'; }")
    await first.click()
    await expect(page.locator("#problem")).to_have_text("Say which answer is better.")


async def test_who_leaves_without_a_rating_is_asked_once(site: Site) -> None:
    for name in ("Back to the characters", "Characters", "Guanaco"):
        visit = await site.visit()
        page = await visit.agree_and_talk()
        for text in ("One", "Two", "Three"):
            await visit.say(text)
        await page.get_by_role("link", name=name, exact=True).click()
        await expect(page.get_by_text("Before you go: how was it?")).to_be_visible()
        good = page.get_by_role("button", name="I liked it", exact=True)
        await expect(good).to_be_focused()
        await page.get_by_role("link", name=name, exact=True).click()
        await expect(page.get_by_role("heading", name="Choose a character")).to_be_visible()
        assert visit.asked_to_stay == 0


async def test_closing_the_page_asks_once_and_keeps_unsent_words(site: Site) -> None:
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Not sent yet")
    await page.reload()
    assert visit.asked_to_stay == 1, "there are words that were not sent"
    for text in ("One", "Two", "Three"):
        await visit.say(text)
    await page.reload()
    await page.get_by_label("Your message").click()
    await page.reload()
    assert visit.asked_to_stay == 2, "for a rating only once"


async def test_a_changed_rating_keeps_its_words(site: Site) -> None:
    visit = await site.visit(size=PHONE)
    page = await visit.agree_and_talk()
    await visit.say("Ahoy")
    await page.get_by_text("Add words").click()
    await page.get_by_label("A few words, if you like").fill("She knows the way.")
    await page.get_by_label("may be shown on the model's public page").check()
    await page.get_by_role("button", name="Save the words").click()
    words = page.locator("#words")
    await expect(words).to_have_accessible_description(re.compile("words alone are no rating"))
    assert await visit.violations() == []
    await page.get_by_role("button", name="I liked it").click()
    await page.get_by_role("button", name="I did not like it").click()
    await expect(page.locator(".rating button[aria-pressed]")).to_have_attribute("value", "down")
    await page.get_by_text("Change your words").click()
    await expect(words).to_have_value("She knows the way.")
    await expect(page.get_by_label("may be shown on the model's public page")).to_be_checked()
    assert [said for said in visit.complaints if "422" not in said] == []


async def test_a_message_that_never_arrived_is_given_back(site: Site) -> None:
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await page.route("**/messages", lambda route: route.fulfill(status=503, body="{}"))
    await page.get_by_label("Your message").fill("Ahoy")
    await page.keyboard.press("Enter")
    await expect(page.locator("#problem")).to_contain_text("That did not work (status 503).")
    await expect(page.get_by_label("Your message")).to_have_value("Ahoy")
    await expect(page.locator(".user")).to_have_count(0)
    await page.unroute("**/messages")
    await page.keyboard.press("Enter")
    await expect(page.locator(".said").last).to_have_text("Hello from memory.")
    await expect(page.locator(".user")).to_have_count(1)


async def test_the_newest_text_is_in_sight_unless_one_reads_above(site: Site) -> None:
    go_on = asyncio.Event()
    long = "\n".join(f"Line {number}" for number in range(60))
    site.world.model_server.scripts = [
        Script(pieces=(long,)),
        Script(pieces=("First.", f"\n{long}\nThe end."), go_on=go_on),
    ]
    visit = await site.visit(size=PHONE)
    page = await visit.agree_and_talk()
    await visit.say("Tell me all")
    assert await page.evaluate(IS_HIDDEN) is False, "the composer covers nothing"
    await page.get_by_label("Your message").fill("More")
    await page.keyboard.press("Enter")
    await expect(page.locator(".said").last).to_have_text("First.")
    assert await page.evaluate(IS_HIDDEN) is False
    await page.evaluate("scrollTo(0, 0)")
    await eventually(
        lambda: page.evaluate("!follows")
    )  # the page's policy lets nothing evaluate text in it again and again
    go_on.set()
    await expect(page.locator(".bot[data-reply]:not(.writing)")).to_have_count(2)
    assert await page.evaluate("scrollY") == 0, "whoever reads above is left there"
    await page.get_by_role("button", name="Jump to the newest message").click()
    assert await page.evaluate(IS_HIDDEN) is False


async def test_markdown_is_shown_and_nothing_of_it_runs(site: Site) -> None:
    hostile = "*winks* **Ahoy** `a<b`\n```\n<b>x</b>\n```\n<img src=x onerror=alert(1)>"
    site.world.model_server.scripts = [Script(pieces=(hostile,))]
    visit = await site.visit()
    page = await visit.agree_and_talk()
    await visit.say("Ahoy")
    said = page.locator(".said").last
    await expect(said.locator("em")).to_have_text("winks")
    await expect(said.locator("strong")).to_have_text("Ahoy")
    await expect(said.locator("pre code")).to_have_text("<b>x</b>")
    await expect(said).to_contain_text("<img src=x onerror=alert(1)>")
    assert await said.locator("img, b").count() == 0
    assert visit.complaints == []


async def test_an_enter_is_heard_from_the_first_moment_on(site: Site) -> None:
    visit = await site.visit()
    await visit.page.add_init_script(ENTER_AT_ONCE)
    page = await visit.agree_and_talk()
    await expect(page.locator(".said").last).to_have_text("Hello from memory.")
    assert visit.complaints == []


async def test_the_chat_works_without_scripts(site: Site) -> None:
    visit = await site.visit(scripts=False)
    page = await visit.agree_and_talk()
    await page.get_by_label("Your message").fill("Ahoy")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("Hello from memory.")).to_be_visible()
    await page.get_by_role("button", name="Another reply").click()
    await expect(page.get_by_text("Hello from memory.")).to_be_visible()
    await page.get_by_role("button", name="I did not like it").click()
    await expect(page.get_by_text("Thank you.")).to_be_visible()


async def test_withdrawing_leads_back_to_the_question(site: Site) -> None:
    visit = await site.visit()
    await visit.agree_and_talk()
    page = await visit.open("/chat")
    await page.get_by_role("link", name="Withdraw my agreement").click()
    await page.get_by_role("button", name="Erase everything").click()
    await expect(page.get_by_text("are erased")).to_be_visible()
    await page.get_by_role("link", name="To the beginning").click()
    await expect(page.get_by_role("button", name="I agree")).to_be_visible()
    newest = (await site.world.audit.list(1)).items[0]
    assert (newest.account, newest.action) == ("web-chat", "erase user")


async def test_the_chat_reads_right_to_left_and_by_keyboard(site: Site) -> None:
    direction = "element => getComputedStyle(element).direction"
    site.world.model_server.scripts = [Script(pieces=("**שלום**", " ים"))]
    visit = await site.visit(size=PHONE)
    page = await visit.agree_and_talk()
    content = page.get_by_label("Your message")
    await content.fill("مرحبا")
    assert await content.evaluate(direction) == "rtl"
    await content.press("Shift+Enter")
    await expect(content).to_have_value("مرحبا\n")
    await visit.say("مرحبا يا قبطان")
    for _ in range(2):
        said = page.locator(".said")
        assert await said.evaluate_all(f"all => all.map({direction})") == ["ltr", "rtl", "rtl"]
        assert not await visit.is_too_wide()
        await page.reload()
    good = page.get_by_role("button", name="A good reply")
    await good.focus()
    await page.keyboard.press("Enter")
    await expect(good).to_have_attribute("aria-pressed", "true")
    await expect(good).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="A bad reply")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Another reply")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(content).to_be_focused()
    assert await visit.violations() == []
    assert visit.complaints == []


async def test_a_developer_talks_to_their_own_model(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada", size=PHONE)
    page = await visit.open(LLAMA_BARD)
    await page.get_by_role("link", name="Chat on the chat page").click()
    await page.get_by_role("button", name="I agree").click()
    await expect(page.locator(".alert")).to_contain_text("Llama Bard")
    await page.get_by_role("button", name="Talk to Captain Marlowe").click()
    await visit.say("Ahoy")
    await expect(page.locator(".alert").first).to_contain_text("counts in no ranking")
    assert await visit.violations() == []
    assert not await visit.is_too_wide()
    await page.get_by_role("link", name="ada-llama-bard_v1").click()
    await expect(page.get_by_role("heading", name="Llama Bard")).to_be_visible()
    await page.get_by_text("Prompt", exact=True).click()
    await page.get_by_role("button", name="Show it to everybody").click()
    public = await (await site.visit(size=PHONE)).open(LLAMA_BARD)
    await expect(public.get_by_role("heading", name="Its prompt")).to_be_visible()
    assert visit.complaints == []


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_two_models_are_chosen_on_the_board_and_compared(
    site: Site, size: tuple[int, int]
) -> None:
    visit = await site.visit(size=size)
    page = await visit.open("/")
    for name in ("Grumpy Badger", "Llama Bard"):
        await page.get_by_role("checkbox", name=f"Compare {name}").check()
    await page.get_by_role("button", name="Compare two").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(
        "Llama Bard beside Grumpy Badger"
    )
    await expect(page.locator(".compared thead a")).to_have_text(["Llama Bard", "Grumpy Badger"])
    assert not await visit.is_too_wide()
    await page.get_by_role("link", name="Grumpy Badger").click()
    await expect(page.get_by_role("heading", name="Grumpy Badger")).to_be_visible()
    assert visit.complaints == []


async def test_first_tab_skips_to_content_and_focus_is_visible(site: Site) -> None:
    visit = await site.visit()
    page = await visit.open("/")
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Open", exact=True)).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


async def test_tab_goes_through_the_header_in_its_order(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open("/submissions")
    names = []
    for _ in range(7):
        await page.keyboard.press("Tab")
        names.append(await page.evaluate("document.activeElement.textContent.trim()"))
    assert names == [
        "Skip to the content",
        "Guanaco",
        "Leaderboard",
        "Chat",
        "My submissions",
        "Submit",
        "Sign out",
    ]


async def test_j_and_k_and_arrows_read_ratings_one_by_one(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open(f"{LLAMA_BARD}/feedback")
    ids = await page.locator("#ratings a").evaluate_all("links => links.map(l => l.dataset.id)")
    for key, place in (("j", 1), ("ArrowRight", 2), ("k", 1), ("ArrowLeft", 0), ("k", 0)):
        await page.keyboard.press(key)
        await expect(page.locator("#ratings [aria-current]")).to_have_attribute("data-id", ids[place])  # fmt: skip
    await page.keyboard.press("j")
    await expect(page.locator("#ratings [aria-current]")).to_have_attribute("data-id", ids[1])
    await expect(page).to_have_url(re.compile(f"show={ids[1]}"))
    await page.get_by_label("Words").press("j")
    await expect(page.get_by_label("Words")).to_have_value("j")
    await page.get_by_role("link", name="Link to this one").click()
    await expect(page).to_have_url(re.compile(f"/feedback/{ids[1]}$"))
    assert visit.complaints == []


async def test_ratings_are_counted_found_and_marked(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada", size=PHONE)
    page = await visit.open(f"{LLAMA_BARD}/feedback")
    await expect(page.locator(".lead")).to_have_text(
        re.compile(r"52 ratings: \s*\d+ up\s+\d+ down")
    )
    await expect(page.get_by_label("From")).to_be_hidden()
    names = await page.locator("#bots option").evaluate_all("all => all.map(one => one.value)")
    assert "Captain Marlowe" in names
    await page.get_by_label("Words").fill("THE ISLAND")
    await page.get_by_label("Bot").fill("Captain Marlowe")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator(".lead")).to_have_text(re.compile(r"\d+ of 52 match(es)?: "))
    await expect(page.locator("#ratings mark").first).to_have_text("the island")
    await page.locator("#ratings a").first.click()
    await expect(page.locator("#reading .said mark").first).to_have_text("the island")
    assert await visit.violations() == []
    assert visit.complaints == []


async def test_followed_log_shows_each_searched_line_once(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "edsger")
    page = await visit.open("/submissions/edsger-owl-13b_v1")
    await expect(page.locator("#live")).to_have_text("live")
    for said in ("Streamed 12 of 26 GB.", "Something else.", "Streamed 13 of 26 GB."):
        await site.world.log("edsger-owl-13b_v1", said)
    await expect(page.locator("#log")).to_contain_text("13 of 26 GB")
    search = page.locator("#log-filter [name=q]")
    await search.fill("streamed")
    await search.press("Enter")
    await expect(page.locator("#log")).not_to_contain_text("Something else.")
    for said in ("Nothing of that kind.", "Streamed 14 of 26 GB."):
        await site.world.log("edsger-owl-13b_v1", said)
    await expect(page.locator("#log")).to_contain_text("14 of 26 GB")
    await expect(page.locator("#log")).not_to_contain_text("Nothing of that kind.")
    for part in ("12 of 26", "13 of 26", "14 of 26"):
        await expect(page.locator("#log p", has_text=part)).to_have_count(1)
    assert visit.complaints == []


async def test_reading_on_goes_over_the_end_of_a_page(site: Site) -> None:
    visit = await site.visit(Role.DEVELOPER, "ada")
    page = await visit.open(f"{LLAMA_BARD}/feedback")
    seen = [await chosen(page)]
    for _ in range(26):
        await page.keyboard.press("j")
        current = page.locator("#ratings [aria-current]")
        await expect(current).not_to_have_attribute("data-id", seen[-1])
        seen.append(await chosen(page))
    assert len(set(seen)) == 27
    await expect(page).to_have_url(re.compile("cursor="))
    for before in (seen[25], seen[24]):
        await page.keyboard.press("k")
        await expect(page.locator("#ratings [aria-current]")).to_have_attribute("data-id", before)
    await expect(page).not_to_have_url(re.compile("cursor="))


async def test_an_operator_makes_a_key_that_opens_the_door(site: Site) -> None:
    visit = await site.visit(Role.ADMIN, "root")
    page = await visit.open("/admin/keys")
    await page.get_by_label("Account").fill("margaret")
    await page.get_by_label("Role").select_option("developer")
    await page.get_by_role("button", name="Make key").click()
    key = await page.locator(".secret").inner_text()
    other = await site.visit()
    await site.sign_in(other, key)
    await page.get_by_role("link", name=re.compile("Revoke .* of margaret")).click()
    await page.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    await other.page.goto(f"{site.url}/submissions")
    assert "/signin" in other.page.url


async def chosen(page: Page) -> str:
    found = await page.locator("#ratings [aria-current]").get_attribute("data-id")
    assert found is not None
    return found
