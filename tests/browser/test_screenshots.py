"""The pictures of docs/web.md, and what the pages said when they were taken; GUANACO_SCREENSHOTS=write takes new ones."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from guanaco.accounts import Role
from guanaco_server.deployments.model_servers.memory import Script
from tests.browser.visiting import LLAMA_BARD, PHONE, Site, Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOWN = Path(__file__).parents[2] / "docs" / "screenshots"
DIGESTS = SHOWN / "digests.json"
COMMAND = "GUANACO_SCREENSHOTS=write .venv/bin/python -m pytest tests/browser/test_screenshots.py"
PNG = b"\x89PNG"
MAX_BYTES = 200_000
LABELS = (
    "h1, h2, h3, thead th, dt, label, option, button, .button, summary, figcaption, legend, "
    "header a, nav a:not([href*='cursor=']), p.label, .note"
)


async def digest(page: Page, part: str = "body") -> str:
    """Return a hash of the words that label the page: no figures, times or ids."""
    said = await page.locator(part).locator(LABELS).all_text_contents()
    lines = [" ".join(text.split()) for text in said]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


async def test_the_screenshots_of_the_documents(site: Site, tmp_path: Path) -> None:
    is_writing = os.environ.get("GUANACO_SCREENSHOTS") == "write"
    folder = SHOWN if is_writing else tmp_path
    folder.mkdir(exist_ok=True)
    digests: dict[str, str] = {}

    async def shoot(visit: Visit, name: str, path: str | None = None, part: str = "") -> None:
        if path is not None:
            await visit.open(path)
        seen = visit.page.locator(part) if part else visit.page
        await seen.screenshot(path=folder / f"{name}.png")
        digests[name] = await digest(visit.page, part or "body")

    await shoot(await site.visit(), "leaderboard", "/")
    ada = await site.visit(Role.DEVELOPER, "ada")
    await shoot(ada, "submission", LLAMA_BARD)
    await shoot(ada, "stress", part="section[aria-labelledby=stress-title]")
    await shoot(ada, "feedback", f"{LLAMA_BARD}/feedback")
    dark = await site.visit(Role.DEVELOPER, "edsger", scheme="dark")
    progress = await dark.open("/submissions/edsger-owl-13b_v1")
    await expect(progress.locator("#live")).to_have_text("live")
    await shoot(dark, "progress-dark")
    await shoot(await site.visit(Role.ADMIN, "root"), "admin", "/admin")
    site.world.model_server.scripts = [Script(pieces=("North, sailor, past the island that hums.",))]  # fmt: skip
    phone = await site.visit(scheme="dark", size=PHONE)
    await phone.agree_and_talk()
    await phone.say("Where are we flying tonight?")
    await shoot(phone, "chat-phone")
    await shoot(phone, "leaderboard-phone", "/")

    if is_writing:
        DIGESTS.write_text(json.dumps(digests, indent=2) + "\n")
    taken = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    assert all(content.startswith(PNG) for content in taken.values())
    assert {name for name, content in taken.items() if len(content) > MAX_BYTES} == set()
    assert set(taken) == {path.stem for path in SHOWN.glob("*.png")}
    if complaint := stale(digests):
        pytest.fail(complaint, pytrace=False)


def stale(now: dict[str, str]) -> str | None:
    """Return what to do where pages say something else than when their pictures were taken."""
    then: dict[str, str] = json.loads(DIGESTS.read_text())
    old = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if not old:
        return None
    return (
        f"docs/screenshots shows older pages ({', '.join(old)}): take them anew with `{COMMAND}`."
    )
