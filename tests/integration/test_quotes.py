"""Tests that words are on a model's public page only if their user agreed, with these very words."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import update

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.feedback.tables import FeedbackRow
from guanaco_server.leaderboard.tables import VoteFlagRow
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser

PAGE = "/submissions/ada-llama-bard_v1"


@pytest.fixture
async def world(database: Database) -> WebWorld:
    world = WebWorld(database)
    await world.model("Llama Bard", "ada")
    await world.routing.refresh()
    return world


async def rated(backend: httpx.AsyncClient, world: WebWorld, text: str, **fields: object) -> str:
    """Rate a new conversation, and return the path of its rating."""
    conversation = await world.open(backend, f"user of {text}"[:60])
    await world.greet(backend, conversation)
    path = f"/conversations/{conversation}/feedback"
    answer = await backend.post(path, json={"thumbs_up": True, "text": text, **fields})
    assert answer.status_code == 201, answer.text
    return path


async def shown(world: WebWorld) -> str:
    """Return what a stranger reads, once all copies are made."""
    ada = await world.developer("ada")
    await world.feedback.page(ada, "ada-llama-bard_v1", None, 100)
    answer = await browser(world).get(PAGE)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.both_databases
async def test_only_agreed_words_are_quoted_and_without_personal_data(world: WebWorld) -> None:
    backend = await world.http(Role.BACKEND)
    await rated(backend, world, "Never asked.")
    await rated(backend, world, "Said no.", may_be_quoted=False)
    await rated(backend, world, "Write to jo@example.org <b>now</b>", may_be_quoted=True)
    page = await shown(world)
    assert page.count("<blockquote") == 1
    assert "Write to &lt;EMAIL&gt; &lt;b&gt;now&lt;/b&gt;" in page
    assert "user_" not in page


@pytest.mark.both_databases
async def test_an_agreement_ends_with_its_words(world: WebWorld) -> None:
    backend = await world.http(Role.BACKEND)
    first = await rated(backend, world, "First words.", may_be_quoted=True)
    second = await rated(backend, world, "Other words.", may_be_quoted=True)
    assert "First words." in await shown(world)
    world.clock.advance(5)
    changed = await backend.put(first, json={"thumbs_up": True, "text": "Second thoughts."})
    assert changed.json()["may_be_quoted"] is False
    assert (await backend.delete(second)).status_code == 204
    page = await shown(world)
    assert "What users say" not in page
    again = {"thumbs_up": True, "text": "Second thoughts.", "may_be_quoted": True}
    assert (await backend.put(first, json=again)).json()["may_be_quoted"] is True
    assert "Second thoughts." in await shown(world)


@pytest.mark.both_databases
async def test_words_of_an_excluded_rating_are_not_quoted(world: WebWorld) -> None:
    backend = await world.http(Role.BACKEND)
    path = await rated(backend, world, "Bought words.", may_be_quoted=True)
    await rated(backend, world, "Honest words.", may_be_quoted=True)
    rating = (await backend.get(path)).json()["feedback_id"]
    flag = VoteFlagRow(
        feedback_id=rating,
        rule="burst",
        competition="open",
        submission_id="ada-llama-bard_v1",
        at=world.clock.now(),
        evidence="Seven ratings in a second.",
    )
    async with world.database.write() as session:
        session.add(flag)
    page = await shown(world)
    assert "Honest words." in page
    assert "Bought words." not in page
    admin = await world.http(Role.ADMIN)
    assert (await admin.post(f"/votes/{rating}/allow")).status_code == 200
    assert "Bought words." in await shown(world)


@pytest.mark.both_databases
async def test_an_admin_hides_a_quote_for_good(world: WebWorld) -> None:
    backend, admin = await world.http(Role.BACKEND), await world.http(Role.ADMIN)
    path = await rated(backend, world, "Come to my shop.", may_be_quoted=True)
    assert "my shop" in await shown(world)
    rating = (await backend.get(path)).json()
    quote = f"/feedback/{rating['feedback_id']}/quote"
    assert (await backend.delete(quote)).status_code == 403
    assert (await admin.delete("/feedback/fb_none/quote")).status_code == 404
    for _ in range(2):
        assert (await admin.delete(quote)).status_code == 204
    assert "my shop" not in await shown(world)
    assert (await backend.get(path)).json()["may_be_quoted"] is False
    audit = (await admin.get("/audit")).json()
    assert "hide quote" in str(audit)


async def test_a_change_by_the_version_before_ends_an_agreement(world: WebWorld) -> None:
    backend = await world.http(Role.BACKEND)
    await rated(backend, world, "Old words.", may_be_quoted=True)
    world.clock.advance(5)
    async with world.database.write() as session:
        await session.execute(
            update(FeedbackRow).values(
                text="New words.", changed_at=world.clock.now(), revision=1, anonymized_by=0
            )
        )
    page = await shown(world)
    assert "Old words." not in page
    assert "New words." not in page
