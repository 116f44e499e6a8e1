"""Visitors of the pages: signed in or not, in light or dark, on a desk or a phone; and what their browser noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Dialog, Page, Response

from guanaco.accounts import Role
from tests.fixtures.web import WebWorld

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
DESK = (1280, 860)
PHONE = (390, 844)
LLAMA_BARD = "/submissions/ada-llama-bard_v1"

PUBLIC_PAGES = (
    "/",
    "/?sort=votes&q=llama",
    "/?competition=spring",
    "/?sort=ratio&order=reverse&size=8",
    f"/compare?with={LLAMA_BARD.rpartition('/')[2]}&with=ada-alpaca-storyteller-8b_v1",
    "/signin",
    LLAMA_BARD,
    "/chat",
    "/docs",
    "/docs/scores",
    "/docs/runbooks",
)
DEVELOPER_PAGES = (
    "/submissions",
    "/submissions?status=failed",
    "/submissions/new",
    "/quota",
    f"{LLAMA_BARD}/redeploy",
    LLAMA_BARD,
    "/submissions/ada-broken_v1",
    f"{LLAMA_BARD}/teardown",
    f"{LLAMA_BARD}/canary",
    f"{LLAMA_BARD}/log",
    f"{LLAMA_BARD}/log?level=warning",
    f"{LLAMA_BARD}/feedback",
    f"{LLAMA_BARD}/feedback?rating=down&text=nothing-like-it",
)
ADMIN_PAGES = (
    "/admin",
    "/admin?period=month",
    "/submissions",
    "/submissions/edsger-owl-13b_v1/cancel",
    "/admin/deployments",
    "/admin/keys",
    "/admin/accounts/ada",
    "/admin/competitions",
    "/admin/new-competition",
    "/admin/competitions/spring",
    "/admin/competitions/spring/freeze",
    "/admin/experiments",
    "/admin/experiments/warmth",
    "/admin/experiments/warmth/start",
    "/admin/votes",
    "/admin/votes?submission=nothing-like-it",
    "/admin/costs",
    "/admin/costs?month=2001-01",
    "/admin/reliability",
    "/admin/users",
    "/admin/audit",
)

SMALL_LETTERS = """
[...document.querySelectorAll("svg text")].filter((text) => {
  const scale = text.getScreenCTM().a;
  return text.textContent.trim() && parseFloat(getComputedStyle(text).fontSize) * scale < 9;
}).map((text) => text.textContent)
"""


@dataclass
class Visit:
    """``complaints`` are console errors, scripts' errors and requests to other hosts; ``answers`` every answer's URL and text."""

    url: str
    page: Page
    complaints: list[str] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)
    asked_to_stay: int = 0

    async def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        await self.page.set_viewport_size({"width": width, "height": height})

    def watch(self) -> None:
        host = urlsplit(self.url).netloc
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._answer)
        self.page.on("response", lambda answer: self.answers.append(answer))
        self.page.on(
            "request",
            lambda request: (
                None
                if urlsplit(request.url).netloc == host or request.url.startswith("data:")
                else self.complaints.append(f"asked {request.url}")
            ),
        )

    async def open(self, path: str) -> Page:
        answer = await self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status}"
        return self.page

    async def violations(self, rules: Sequence[str] = ()) -> list[str]:
        """Return what axe finds, by all its rules or by these: the rule, and the first element."""
        await self.page.evaluate(AXE)
        found: dict[str, Any] = await self.page.evaluate(
            """rules => axe.run({
              resultTypes: ["violations"], ...(rules.length && { runOnly: rules })
            }).then(({ violations }) => ({ violations }))""",
            list(rules),
        )
        return [
            f"{item['id']}: {item['nodes'][0]['html'][:160]} {item['nodes'][0]['failureSummary']}"
            for item in found["violations"]
        ]

    async def is_too_wide(self) -> bool:
        """Return whether the page would scroll sideways."""
        root = "document.documentElement"
        return bool(await self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))

    async def is_too_long(self) -> bool:
        """Return whether one could scroll on after the page's end."""
        end = "document.querySelector('footer').getBoundingClientRect().bottom + scrollY"
        return bool(await self.page.evaluate(f"document.documentElement.scrollHeight > {end} + 1"))

    async def small_letters(self) -> list[str]:
        """Return what a drawing says in letters under 9 pixels."""
        found: list[str] = await self.page.evaluate(SMALL_LETTERS)
        return found

    async def agree_and_talk(self) -> Page:
        """Consent, and a conversation with the first character."""
        page = await self.open("/chat")
        await page.get_by_role("button", name="I agree").click()
        await page.get_by_role("button", name="Talk to Captain Marlowe").click()
        await page.get_by_label("Your message").wait_for()
        return page

    async def say(self, text: str) -> None:
        """Send a message by keyboard and wait until the reply has ended and has its buttons."""
        replies = await self.page.locator(".bot[data-reply]:not(.writing)").count()
        await self.page.get_by_label("Your message").fill(text)
        await self.page.keyboard.press("Enter")
        reply = self.page.locator(".bot[data-reply]:not(.writing)").nth(replies)
        await reply.locator(".tools").wait_for()

    async def _answer(self, dialog: Dialog) -> None:
        """Leave the page where the browser asks whether to; no page of ours has another dialog."""
        if dialog.type == "beforeunload":
            self.asked_to_stay += 1
        else:
            self.complaints.append(f"dialog: {dialog.message}")
        await dialog.accept()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


class Visitors:
    """Browsers before a server."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    async def come(
        self,
        *,
        scheme: Literal["light", "dark"] = "light",
        size: tuple[int, int] = DESK,
        scripts: bool = True,
        zone: str = "UTC",
    ) -> Visit:
        """Somebody whom the server does not know."""
        context = await self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            reduced_motion="reduce",
            java_script_enabled=scripts,
            timezone_id=zone,
        )
        self._contexts.append(context)
        visit = Visit(self.url, await context.new_page())
        visit.watch()
        return visit

    async def sign_in(self, visit: Visit, key: str) -> None:
        page = await visit.open("/signin")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("main").get_by_role("button", name="Sign in").click()
        await page.get_by_role("button", name="Sign out").wait_for()


class Site(Visitors):
    """A world's pages."""

    def __init__(self, world: WebWorld, browser: Browser, url: str) -> None:
        super().__init__(browser, url)
        self.world = world

    async def visit(
        self,
        role: Role | None = None,
        name: str = "",
        *,
        scheme: Literal["light", "dark"] = "light",
        size: tuple[int, int] = DESK,
        scripts: bool = True,
        zone: str = "UTC",
    ) -> Visit:
        visit = await self.come(scheme=scheme, size=size, scripts=scripts, zone=zone)
        if role is not None:
            await self.sign_in(visit, await self.world.key(role, name))
        return visit
