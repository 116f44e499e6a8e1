"""Regenerations of which a coin gives the conversation's own reply or another submission's, and what is counted of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.competitions import (
    OPEN,
    AssignmentKind,
    AssignmentRule,
    CompetitionRequest,
    DuelRule,
)
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.duels import regenerating
from tests.fixtures.talking import contents, parse
from tests.fixtures.world import World, eventually

OWN, RIVAL = "acme-tiny_v1", "bolt-tiny_v1"


async def compared_world(
    database: Database, *scripts: Script, seed: int | None = None
) -> tuple[World, httpx.AsyncClient]:
    """A world whose open competition has battles, and compares every regeneration that an app allows."""
    world = World(database, *scripts)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), OWN)
    rules = CompetitionRequest(
        name="Open",
        starts_at=OPEN_COMPETITION.starts_at,
        duels=DuelRule(battles=True, regenerations=1.0),
        assignment=AssignmentRule(kind=AssignmentKind.UNIFORM, seed=seed),
    )
    await world.competitions.put(OPEN, rules)
    return world, await world.http(Role.BACKEND, "app")


async def talk(world: World, http: httpx.AsyncClient) -> str:
    """A conversation with OWN that has a reply, before RIVAL is published."""
    conversation = await world.open(http)
    await world.greet(http, conversation)
    return conversation


async def regenerate(http: httpx.AsyncClient, conversation: str, **fields: Any) -> Any:
    answer = await http.post(f"/conversations/{conversation}/regenerate", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def drawn(database: Database) -> list[tuple[str, str, bool]]:
    async with database.read() as session:
        rows = await session.execute(text("SELECT own, rival, is_rivals FROM regenerations"))
        return [(own, rival, bool(is_rivals)) for own, rival, is_rivals in rows]


async def pairs(world: World) -> Any:
    """Carry out the duty that notes outcomes, and read the results."""
    while await world.platform.rooms.duels.regenerations.note_outcomes():
        pass
    admin = await world.http(Role.ADMIN, "root")
    answer = await admin.get(f"/competitions/{OPEN}/regenerations")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.both_databases
async def test_a_users_first_regeneration_is_compared_and_counted(database: Database) -> None:
    world, http = await compared_world(
        database, Script(("First",)), Script(("One",)), Script(("Two",)), Script(("Third",))
    )
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    reply = await regenerate(http, conversation, may_compare=True)
    ((own, rival, is_rivals),) = await drawn(database)
    assert (own, rival) == (OWN, RIVAL)
    assert reply["content"] in ("One", "Two")
    assert reply["usage"] == {"prompt_tokens": 14, "completion_tokens": 2}, "of both"
    said = await contents(http, conversation)
    assert said == [
        ("user", "Hello", False),
        ("bot", "First", True),
        ("bot", reply["content"], False),
    ]
    found = (await http.get(f"/conversations/{conversation}")).json()["messages"][-1]
    assert (found["edited_at"], found["timings"]) == (None, None), "nothing tells whose it is"
    world.clock.advance(60)
    await http.post(f"/conversations/{conversation}/messages", json={"content": "And then?"})
    assert await pairs(world) == [], "an hour is given"
    world.clock.advance(timedelta(hours=1).total_seconds())
    (pair,) = await pairs(world)
    side, other = ("other", "own") if is_rivals else ("own", "other")
    score = pair["in_firsts"]
    assert (score[f"{side}_kept"], score[f"{side}_total"], score[f"{other}_total"]) == (1, 1, 0)
    assert (pair["first"], pair["second"], pair["lead"]) == (OWN, RIVAL, None)
    await regenerate(http, conversation, may_compare=True)
    assert len(await drawn(database)) == 1, "only the first one of a user"


async def test_a_reply_that_is_replaced_again_was_not_kept(database: Database) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    await regenerate(http, conversation, may_compare=True)
    await regenerate(http, conversation)
    await world.greet(http, conversation)
    world.clock.advance(timedelta(hours=1).total_seconds())
    (pair,) = await pairs(world)
    score = pair["in_firsts"]
    assert (score["own_kept"] + score["other_kept"], score["own_total"] + score["other_total"]) == (
        0,
        1,
    )


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.both_databases
async def test_a_deleted_reply_counts_by_what_the_user_did(
    database: Database, goes_on: bool
) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    reply = await regenerate(http, conversation, may_compare=True)
    if goes_on:
        await world.greet(http, conversation)
    gone = await http.delete(
        f"/conversations/{conversation}/messages/{reply['message_id']}",
        params={"with_following": True},
    )
    assert gone.is_success, gone.text
    world.clock.advance(timedelta(hours=1).total_seconds())
    (pair,) = await pairs(world)
    score = pair["in_firsts"]
    assert score["own_total"] + score["other_total"] == 1
    assert score["own_kept"] + score["other_kept"] == goes_on


async def test_a_draw_whose_reply_is_not_there_is_dropped(database: Database) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    await regenerate(http, conversation, may_compare=True)
    async with database.write() as session:
        await session.execute(text("UPDATE regenerations SET message_id = 'message_lost'"))
    world.clock.advance(timedelta(hours=1).total_seconds())
    assert (await pairs(world), await drawn(database)) == ([], [])


async def test_a_rival_that_is_late_is_not_compared(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regenerating, "RIVAL_WAIT_S", 0.01)
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    world.model_server.silent.update(world.deployments.replicas(RIVAL))
    assert (await regenerate(http, conversation, may_compare=True))["timings"]["total_ms"] > 0
    assert await drawn(database) == []


async def test_a_reply_streams_where_there_is_no_rival(database: Database) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    answer = await http.post(
        f"/conversations/{conversation}/regenerate", json={"may_compare": True, "stream": True}
    )
    assert [name for name, _ in parse(answer.text)] == ["token", "token", "token", "done"]


async def test_without_consent_or_a_rival_it_is_ordinary(database: Database) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    alone = await regenerate(http, conversation, may_compare=True, stream=False)
    assert alone["timings"]["total_ms"] > 0
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    await regenerate(http, conversation)
    assert await drawn(database) == []


async def test_a_rival_that_fails_is_not_compared(database: Database) -> None:
    world, http = await compared_world(database)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    world.model_server.unhealthy.update(world.deployments.replicas(RIVAL))
    assert (await regenerate(http, conversation, may_compare=True))["timings"]["total_ms"] > 0
    assert await drawn(database) == []


@pytest.mark.both_databases
async def test_one_of_two_simultaneous_regenerations_is_compared(database: Database) -> None:
    go_on = asyncio.Event()
    slow = Script(("One", " more"), go_on=go_on)
    world, http = await compared_world(database, Script(("First",)), Script(("First",)), slow)
    conversations = [await talk(world, http) for _ in range(2)]
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    both = [asyncio.create_task(regenerate(http, one, may_compare=True)) for one in conversations]

    async def all_are_written() -> bool:
        return len(world.model_server.generations) == 6

    await eventually(all_are_written)
    go_on.set()
    assert {reply["content"] for reply in await asyncio.gather(*both)} == {"One more"}
    assert len(await drawn(database)) == 1


async def test_rivals_of_battles_and_regenerations_can_be_replayed(database: Database) -> None:
    world, http = await compared_world(database, seed=7)
    conversation = await talk(world, http)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    await world.routing.refresh()
    await regenerate(http, conversation, may_compare=True)
    world.clock.advance(1)
    battle = await http.post(f"/conversations/{conversation}/battles", json={"content": "And?"})
    ((_, _, is_rivals),) = await drawn(database)
    admin = await world.http(Role.ADMIN, "root")
    found = (await admin.get(f"/conversations/{conversation}/rivals")).json()
    assert [(one["own"], one["rival"], one["chance"], one["is_same"]) for one in found] == [
        (OWN, RIVAL, 1, True),
        (OWN, RIVAL, 1, True),
    ]
    assert found[0]["regeneration_id"] == found[0]["decision"]["key"]
    assert [one["drawn"] for one in found] == [RIVAL if is_rivals else OWN, None]
    assert [one["battle_id"] for one in found] == [None, battle.json()["battle_id"]]
    missing = await admin.get("/conversations/conv_other/rivals")
    assert (missing.status_code, missing.json()["error"]) == (404, "conversation_not_found")
