"""Tests that a random, recorded share of conversations is asked for a rating, and the figures about all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from guanaco.accounts import Role
from guanaco.competitions import OPEN, AskRule, CompetitionRequest
from guanaco_server.chat.gateway.asking import drawn
from guanaco_server.chat.tables import AskRow
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.rating import converse
from tests.fixtures.talking import talking
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser
from tests.fixtures.world import BOT, World

SUBMISSION = "acme-tiny_v1"
SEED = 7


class Cup:
    """A competition that asks, with one submission, and users who talk."""

    def __init__(self, world: World, http: httpx.AsyncClient) -> None:
        self.world = world
        self.http = http

    async def rule(self, **ask: Any) -> httpx.Response:
        admin = await self.world.http(Role.ADMIN, "root")
        body = {
            "name": "Cup",
            "starts_at": "2000-01-01T00:00:00Z",
            "assignment": {"kind": "uniform", "seed": SEED},
            "ask": {"after": 2, "share": 0.5} | ask,
        }
        answer = await admin.put("/competitions/cup", json=body)
        await self.world.routing.refresh()
        return answer

    async def open(self, user: str) -> str:
        body = {"user_id": user, "bot": BOT.model_dump(), "consent": True, "competition": "cup"}
        answer = await self.http.post("/conversations", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["conversation_id"])

    async def say(self, conversation: str, content: str) -> bool:
        path = f"/conversations/{conversation}/messages"
        answer = await self.http.post(path, json={"content": content})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["ask_for_feedback"])

    async def talk(self, user: str) -> tuple[str, bool]:
        """Open a conversation and say two things; return whether the user was asked then."""
        conversation = await self.open(user)
        assert not await self.say(conversation, "Hello")
        return conversation, await self.say(conversation, "How are you?")

    async def asked(self) -> list[AskRow]:
        async with self.world.database.read() as session:
            rows = await session.scalars(select(AskRow).order_by(AskRow.at, AskRow.conversation_id))
            return list(rows)

    async def rate(self, conversation: str, thumbs_up: bool) -> None:
        path = f"/conversations/{conversation}/feedback"
        answer = await self.http.post(path, json={"thumbs_up": thumbs_up})
        assert answer.status_code == 201, answer.text

    async def told(self) -> Any:
        """Return the verdict on all who could be asked, once it is no longer remembered."""
        self.world.clock.advance(31)
        found = await self.http.get("/leaderboard/verdict", params={"competition": "cup"})
        assert found.status_code == 200, found.text
        return found.json()["asked"]


@pytest.fixture
async def cup(database: Database) -> Cup:
    world, http, _ = await talking(database, Script(("Hi",)))
    cup = Cup(world, http)
    assert (await cup.rule()).status_code == 200
    return cup


async def test_who_is_asked_is_drawn_and_can_be_drawn_again(cup: Cup) -> None:
    asked = dict([await cup.talk(f"user-{number}") for number in range(12)])
    assert 0 < sum(asked.values()) < 12
    for conversation, is_asked in asked.items():
        assert is_asked is (drawn("cup", SEED, conversation) < 0.5)
    rows = await cup.asked()
    assert {row.conversation_id: row.is_asked for row in rows} == asked
    assert {(row.submission_id, row.chance) for row in rows} == {(SUBMISSION, 0.5)}
    assert rows[0].until - rows[0].at == timedelta(minutes=60)


async def test_signals_are_those_before_the_draw(cup: Cup) -> None:
    await cup.rule(share=1)
    conversation = await cup.open("user")
    await cup.say(conversation, "Hello")
    regenerate = f"/conversations/{conversation}/regenerate"
    assert (await cup.http.post(regenerate)).status_code == 200
    cup.world.clock.advance(120)
    assert await cup.say(conversation, "Hello again")
    await cup.say(conversation, "A much longer message, which nobody knew of before")
    signals = (await cup.asked())[0].signals
    assert signals["said_chars"] == (5 + 11) / 2
    assert (signals["reply_chars"], signals["regenerated"], signals["recent"]) == (2, 1, 2)
    assert signals["minutes"] == pytest.approx(2, abs=0.2)
    assert signals["reward"] is None


async def test_a_reply_that_is_regenerated_asks_as_it_did(cup: Cup) -> None:
    for number in range(6):
        conversation, is_asked = await cup.talk(f"user-{number}")
        await cup.rule(share=0.01 if is_asked else 1)
        again = await cup.http.post(f"/conversations/{conversation}/regenerate")
        assert again.json()["ask_for_feedback"] is is_asked
        await cup.rule()
    assert len(await cup.asked()) == 6


async def test_only_a_users_first_conversation_with_a_submission_is_drawn(cup: Cup) -> None:
    await cup.rule(share=1)
    first, is_asked = await cup.talk("user")
    assert is_asked
    assert (await cup.talk("user"))[1] is False
    assert [row.conversation_id for row in await cup.asked()] == [first]


@pytest.mark.both_databases
async def test_a_ratio_is_told_of_all_who_could_be_asked(cup: Cup) -> None:
    asked = [await cup.talk(f"user-{number}") for number in range(20)]
    cup.world.clock.advance(1)
    for place, (conversation, _) in enumerate(asked):
        if place % 3:
            await cup.rate(conversation, thumbs_up=place % 2 == 0)
    counted = [place for place, (_, is_asked) in enumerate(asked) if is_asked and place % 3]
    early = await cup.told()
    assert (early["rows"], early["leader"], early["waiting"]) == ([], None, 20)
    cup.world.clock.advance(3_600)
    found = await cup.told()
    (row,) = found["rows"]
    assert (found["waiting"], row["eligible"]) == (0, 20)
    assert row["asked"] == sum(is_asked for _, is_asked in asked)
    assert (row["answered"], row["up"]) == (
        len(counted),
        sum(place % 2 == 0 for place in counted),
    )
    assert row["low"] <= row["ratio"] <= row["high"]
    assert (found["leader"], found["is_decided"], found["worth"]) == (SUBMISSION, False, None)


async def test_the_first_answer_in_time_counts(cup: Cup) -> None:
    await cup.rule(share=1)
    changed, late, early = [await cup.open(name) for name in ("changed", "late", "early")]
    for conversation in (changed, late, early):
        await cup.say(conversation, "Hello")
    await cup.rate(early, thumbs_up=True)
    for conversation in (changed, late, early):
        await cup.say(conversation, "How are you?")
    cup.world.clock.advance(1)
    await cup.rate(changed, thumbs_up=True)
    path = f"/conversations/{changed}/feedback"
    assert (await cup.http.put(path, json={"thumbs_up": False})).status_code == 200
    assert (await cup.http.delete(path)).status_code == 204
    cup.world.clock.advance(3_600)
    await cup.rate(late, thumbs_up=True)
    (row,) = (await cup.told())["rows"]
    assert (row["eligible"], row["answered"], row["up"]) == (2, 1, 1)


async def test_the_submissions_own_account_is_not_among_them(cup: Cup) -> None:
    await cup.rule(share=1)
    await cup.talk("user")
    owner = (await cup.world.account(Role.DEVELOPER, "ada")).id
    async with cup.world.database.write() as session:
        await session.execute(update(AskRow).values(user_key=f"{owner}/user"))
    cup.world.clock.advance(3_600)
    assert (await cup.told())["rows"] == []


@pytest.mark.both_databases
async def test_what_was_drawn_goes_with_its_conversation(cup: Cup) -> None:
    first, _ = await cup.talk("user-1")
    await cup.talk("user-2")
    cup.world.clock.advance(3_600)
    assert (await cup.told())["rows"][0]["eligible"] == 2
    erased = await cup.http.post("/users/erase", json={"user_id": "user-2"})
    assert erased.status_code == 200
    assert [row.conversation_id for row in await cup.asked()] == [first]
    assert (await cup.told())["rows"][0]["eligible"] == 1


@pytest.mark.both_databases
async def test_signals_of_another_version_are_read_tolerantly(cup: Cup) -> None:
    for number in range(3):
        await cup.talk(f"user-{number}")
    async with cup.world.database.write() as session:
        strange = {"said_chars": "long", "reward": True, "mood": 3}
        await session.execute(update(AskRow).values(signals=strange))
    cup.world.clock.advance(3_600)
    assert (await cup.told())["rows"][0]["eligible"] == 3


async def test_a_rule_that_asks_twice_is_refused(cup: Cup) -> None:
    admin = await cup.world.http(Role.ADMIN, "root")
    body = {
        "name": "Cup",
        "starts_at": "2000-01-01T00:00:00Z",
        "feedback_after": 3,
        "ask": {"after": 2, "share": 0.5},
    }
    refused = await admin.put("/competitions/cup", json=body)
    assert refused.status_code == 422
    assert "Set feedback_after or ask, not both" in refused.text
    without = await cup.http.get("/leaderboard/verdict")
    assert without.json()["asked"] is None


async def test_the_board_tells_both_claims_apart(database: Database) -> None:
    world = WebWorld(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), SUBMISSION)
    backend = await world.account(Role.BACKEND, "app")
    rules = CompetitionRequest(
        name="Open", starts_at=OPEN_COMPETITION.starts_at, ask=AskRule(after=1, share=0.5)
    )
    await world.competitions.put(OPEN, rules)
    page = (await browser(world).get("/")).text
    assert "has answered yet" in page
    conversation = await converse(world, backend, SUBMISSION, "user")
    now = world.clock.now()
    async with world.database.write() as session:
        session.add(
            AskRow(
                conversation_id=conversation,
                competition=OPEN,
                submission_id=SUBMISSION,
                user_key=f"{backend.id}/user",
                at=now,
                until=now + timedelta(minutes=1),
                chance=0.5,
                is_asked=False,
                signals={},
            )
        )
    world.clock.advance(120)
    page = (await browser(world).get("/")).text
    assert "a different claim from the one above" in page
    assert "From the answers alone" in page
