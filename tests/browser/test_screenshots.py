"""The pictures of docs/web.md. Kept as they are in the checkout unless GUANACO_SCREENSHOTS=write asks for new ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.deployments.memory_server import Script
from tests.browser.visiting import LLAMA_BARD, PHONE, Site, Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOWN = Path(__file__).parents[2] / "docs" / "screenshots"
PNG = b"\x89PNG"
MAX_BYTES = 200_000


async def test_the_screenshots_of_the_documents(site: Site, tmp_path: Path) -> None:
    folder = SHOWN if os.environ.get("GUANACO_SCREENSHOTS") == "write" else tmp_path
    folder.mkdir(exist_ok=True)

    async def shoot(visit: Visit, name: str, path: str | None = None, full: bool = False) -> None:
        if path is not None:
            await visit.open(path)
        await visit.page.screenshot(path=folder / f"{name}.png", full_page=full)

    public = await site.visit()
    await shoot(public, "leaderboard", "/")
    ada = await site.visit(Role.DEVELOPER, "ada")
    await shoot(ada, "submission", LLAMA_BARD)
    stress = ada.page.locator("section[aria-labelledby=stress-title]")
    await stress.screenshot(path=folder / "stress.png")
    await shoot(ada, "feedback", f"{LLAMA_BARD}/feedback")
    dark = await site.visit(Role.DEVELOPER, "edsger", scheme="dark")
    await shoot(dark, "progress-dark", "/submissions/edsger-owl-13b_v1")
    await shoot(await site.visit(Role.ADMIN, "root"), "admin", "/admin")
    site.world.model_server.scripts = [Script(pieces=("North, sailor, past the island that hums.",))]  # fmt: skip
    phone = await site.visit(scheme="dark", size=PHONE)
    await phone.agree_and_talk()
    await phone.say("Where are we flying tonight?")
    await shoot(phone, "chat-phone")
    await shoot(phone, "leaderboard-phone", "/")

    taken = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert all(content.startswith(PNG) for content in taken.values())
    assert {name for name, content in taken.items() if len(content) > MAX_BYTES} == set()
    assert set(taken) == {path.name for path in SHOWN.glob("*.png")}
