"""Earlier messages that are shown again, over HTTP and."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.parameters import GenerationParams
from guanaco_server.database.database import Database
from tests.fixtures.world import World

FACT = "My ferret is called Quillon."
SHOWN = f"Earlier, the user said: {FACT}\n"
QUESTION = "How old do you think a ferret gets?"


@pytest.fixture
async def world(database: Database) -> World:
    return World(database)


async def long_talk(world: World, recall_tokens: int) -> tuple[httpx.AsyncClient, str]:
    """A conversation whose first message, the fact, no longer fits into the prompt."""
    developer = await world.account(Role.DEVELOPER, "ada")
    params = GenerationParams(max_input_tokens=160, recall_tokens=recall_tokens)
    await world.publish(developer, params=params)
    http = await world.http(Role.BACKEND)
    body = {"user_id": "u", "consent": True, "bot": {"name": "Ada", "memory": "An owl."}}
    talk = (await http.post("/conversations", json=body)).json()["conversation_id"]
    await say(http, talk, FACT)
    for place in range(24):
        await say(http, talk, f"Number {place}: we went on along the river until the evening.")
    assert FACT not in world.model_server.generations[-1].prompt
    return http, talk


async def say(http: httpx.AsyncClient, talk: str, content: str) -> None:
    said = await http.post(f"/conversations/{talk}/messages", json={"content": content})
    assert said.status_code == 200, said.text


async def messages(http: httpx.AsyncClient, talk: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(f"/conversations/{talk}")).json()["messages"]
    return found


async def test_cut_fact_is_shown_before_the_message_that_asks(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=32)
    await say(http, talk, QUESTION)
    prompt = world.model_server.generations[-1].prompt
    assert prompt.count(SHOWN) == 1
    assert prompt.index(SHOWN) < prompt.index(QUESTION)
    assert (await messages(http, talk))[-2]["recalled"] == [1]


async def test_nothing_is_recalled_unless_the_submission_says_so(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=0)
    await say(http, talk, QUESTION)
    assert FACT not in world.model_server.generations[-1].prompt
    assert not any("recalled" in one for one in await messages(http, talk))


async def test_what_was_recalled_stays_where_it_was_shown(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=32)
    await say(http, talk, QUESTION)
    first = world.model_server.generations[-1].prompt
    await say(http, talk, "And is a ferret tame?")
    prompt = world.model_server.generations[-1].prompt
    assert prompt.count(SHOWN) == 1
    assert prompt.startswith(first[: first.index(QUESTION)]), "the prefix cache holds"


async def test_another_process_makes_the_same_prompt(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=32)
    await say(http, talk, QUESTION)
    before = world.model_server.generations[-1].prompt
    world.replies.forget([talk])
    assert (await http.post(f"/conversations/{talk}/regenerate")).status_code == 200
    assert world.model_server.generations[-1].prompt == before


@pytest.mark.both_databases
async def test_a_message_deleted_since_is_shown_no_more(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=32)
    await say(http, talk, QUESTION)
    async with world.database.write() as session:
        await session.execute(text("UPDATE messages SET is_deleted = true WHERE position = 1"))
    world.replies.forget([talk])
    await say(http, talk, "Go on.")
    assert FACT not in world.model_server.generations[-1].prompt


async def test_the_budget_bounds_what_is_recalled(world: World) -> None:
    http, talk = await long_talk(world, recall_tokens=10)
    await say(http, talk, QUESTION)
    assert FACT not in world.model_server.generations[-1].prompt
