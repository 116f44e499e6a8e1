"""Tests what the leaderboard shows, of whom, and to whom."""

from __future__ import annotations

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.submissions import Status
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from tests.fixtures.world import World


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


@pytest.fixture
async def ada(world: World) -> Account:
    return await world.account(Role.DEVELOPER, "ada")


async def rate(world: World, http: httpx.AsyncClient, user: str, thumbs_up: bool) -> str:
    conversation = await world.open(http, user)
    await world.greet(http, conversation)
    path = f"/conversations/{conversation}/feedback"
    assert (await http.post(path, json={"thumbs_up": thumbs_up})).status_code == 201
    world.clock.advance(1)
    return conversation


async def rows(world: World) -> list[dict[str, object]]:
    await world.scores.loop.run_once()
    answer = await world.http_with({}).get("/leaderboard")
    assert answer.status_code == 200
    found: list[dict[str, object]] = answer.json()["rows"]
    return found


async def test_replies_that_were_regenerated_do_not_make_a_conversation_longer(
    world: World, ada: Account
) -> None:
    await world.publish(ada)
    http = await world.http(Role.BACKEND)
    conversation = await rate(world, http, "alice", True)
    for _ in range(3):
        await http.post(f"/conversations/{conversation}/regenerate")
    [row] = await rows(world)
    assert row["mean_conversation_length"] == 2


async def test_unrated_conversations_count_but_have_no_length(world: World, ada: Account) -> None:
    await world.publish(ada)
    await world.open(await world.http(Role.BACKEND))
    [row] = await rows(world)
    assert (row["conversation_count"], row["mean_conversation_length"]) == (1, None)
    assert (row["rank"], row["interval_low"], row["interval_high"]) == (None, None, None)


@pytest.mark.both_databases
async def test_only_the_latest_vote_of_a_user_counts(world: World, ada: Account) -> None:
    await world.publish(ada)
    http = await world.http(Role.BACKEND)
    for thumbs_up in (False, False, True):
        await rate(world, http, "alice", thumbs_up)
    [row] = await rows(world)
    assert (row["thumbs_up"], row["thumbs_down"], row["feedback_count"]) == (1, 0, 3)


async def test_a_unanimous_no_ranks_above_no_vote_at_all(world: World, ada: Account) -> None:
    await world.publish(ada, "bad_v1")
    await rate(world, await world.http(Role.BACKEND), "alice", False)
    await world.publish(ada, "new_v1")
    assert [(row["submission_id"], row["rank"]) for row in await rows(world)] == [
        ("bad_v1", 1),
        ("new_v1", None),
    ]


async def test_only_what_is_or_was_published_is_shown(world: World, ada: Account) -> None:
    for status in Status:
        await world.publish(ada, f"{status.value}_v1", status)
    assert {row["status"] for row in await rows(world)} == {"deployed", "inactive", "torn_down"}


async def test_the_public_leaderboard_names_no_user_and_no_account_id(
    world: World, ada: Account
) -> None:
    await world.publish(ada)
    await rate(world, await world.http(Role.BACKEND), "alice@example.org", True)
    text = (await world.http_with({}).get("/leaderboard")).text
    assert "alice" not in text
    assert ada.id not in text
