"""Personas that no model has room for, over HTTP: cut at once, shortened in the background, erased."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from guanaco.accounts import Role
from guanaco.errors import NoModelAvailable
from guanaco.parameters import GenerationParams
from guanaco_server.chat.tables import PersonaVersionRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import MemoryModelServer
from guanaco_server.deployments.model_servers.model_server import Chunk, Generation
from tests.fixtures.world import World

FILLER = "She likes the weather, and the weather is what she likes. "
FACTS = "Her brother Edmund was lost in 1890. Her compass points to Gullrock. "
LONG = f"Captain Marlowe steers the sky-ship Thistle. {FILLER * 20}{FACTS}"
BOT = {"name": "Marlowe", "memory": LONG}


async def world_with(database: Database) -> tuple[World, httpx.AsyncClient]:
    world = World(database)
    params = GenerationParams(max_input_tokens=128)  # a word is a token
    await world.publish(await world.account(Role.DEVELOPER, "ada"), params=params)
    return world, await world.http(Role.BACKEND, "app")


async def opened(http: httpx.AsyncClient, user: str, **more: Any) -> str:
    body = {"user_id": user, "consent": True} | (more or {"bot": BOT})
    answer = await http.post("/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["conversation_id"])


async def persona(http: httpx.AsyncClient, talk: str) -> Any:
    answer = await http.get(f"/conversations/{talk}/persona")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stored(database: Database) -> int:
    async with database.read() as session:
        count = await session.scalar(select(func.count()).select_from(PersonaVersionRow))
    return int(count or 0)


async def test_a_persona_is_cut_until_a_better_version_is_made(database: Database) -> None:
    world, http = await world_with(database)
    first = await opened(http, "a")
    await world.platform.rooms.chat.personas.finish()
    second, third = await opened(http, "b"), await opened(http, "c")
    cut, better = await persona(http, first), await persona(http, second)
    assert (cut["method"], better["method"]) == ("cut", "extract")
    assert cut["original"] == better["original"] == LONG
    assert cut["kept"] < better["kept"] <= 1
    assert "Edmund" in better["text"]
    assert "Edmund" not in cut["text"]
    assert [one["method"] for one in cut["versions"]] == ["extract", "cut"]
    assert all(one["tokens"] <= cut["budget_tokens"] for one in cut["versions"])
    assert (await persona(http, third))["text"] == better["text"]
    said = await http.post(f"/conversations/{first}/messages", json={"content": "Hello!"})
    assert said.status_code == 200, said.text
    assert (await persona(http, first))["text"] == cut["text"], "a prompt's beginning stays"


async def test_a_persona_that_fits_is_whole(database: Database) -> None:
    _, http = await world_with(database)
    talk = await opened(http, "a", bot={"name": "Ada", "memory": "An owl."})
    found = await persona(http, talk)
    assert (found["method"], found["text"], found["kept"]) == ("whole", "An owl.", 1)
    assert await stored(database) == 0


async def test_another_app_shares_a_public_characters_version_only(database: Database) -> None:
    world, http = await world_with(database)
    other = await world.http(Role.BACKEND, "other")
    card = {"name": "Marlowe", "description": LONG}
    pushed = await http.post("/characters?public=true", json=card)
    assert pushed.status_code == 201, pushed.text
    await opened(http, "a", character=pushed.json()["id"])
    await world.platform.rooms.chat.personas.finish()
    shared = await opened(other, "b", character=pushed.json()["id"])
    assert (await persona(other, shared))["method"] == "extract"
    alone = await opened(other, "b")
    assert (await persona(other, alone))["method"] == "cut"
    assert (await http.get(f"/conversations/{shared}/persona")).status_code == 404


async def test_only_its_user_reads_a_persona_with_an_equal_cut(
    database: Database,
) -> None:
    _, http = await world_with(database)
    bots = [BOT | {"memory": f"{LONG}She waits for {name}."} for name in ("Kim", "Lou")]
    kim, lou = [await opened(http, f"user {number}", bot=bot) for number, bot in enumerate(bots)]
    found = await persona(http, lou)
    assert found["text"] == (await persona(http, kim))["text"]
    assert "Lou" in found["original"]
    assert "Kim" not in str(found)


@pytest.mark.both_databases
async def test_nothing_is_stored_of_a_conversation_that_is_not_opened(database: Database) -> None:
    world, http = await world_with(database)

    async def full(*_: Any, **__: Any) -> Any:
        raise NoModelAvailable

    assign, world.routing.assign = world.routing.assign, full  # type: ignore[method-assign]
    body = {"user_id": "a", "consent": True, "bot": BOT}
    assert (await http.post("/conversations", json=body)).status_code == 503
    world.routing.assign = assign  # type: ignore[method-assign]
    await world.platform.rooms.chat.personas.finish()
    assert await stored(database) == 0


NAMES = ("Edmund", "Ines", "Quillon", "Gullrock", "Trieste", "Thistle")
VOYAGES = "".join(
    f"On one of her long voyages she met {name} and they talked of nothing but small things of no weight at all for a very long while indeed. "
    for name in NAMES
)


class Editor(MemoryModelServer):
    """Writes ``text`` when it is asked to shorten a description."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        if "You shorten descriptions" in generation.prompt:
            yield Chunk((self.text,))
            yield Chunk((), "stop", 7, 9)
            return
        async for chunk in super().generate(endpoint, generation):
            yield chunk


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (f"On voyages she met {', '.join(NAMES)}.", "model"),
        ("Buy gold watches from Geneva, cheap!", "extract"),
    ],
)
async def test_a_models_version_is_used_if_it_keeps_more(
    database: Database, text: str, method: str
) -> None:
    world = World(database, model_server=Editor(text))
    params = GenerationParams(max_input_tokens=112, max_output_tokens=400)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), params=params)
    http = await world.http(Role.BACKEND, "app")
    bot = {"name": "Marlowe", "memory": VOYAGES}
    await opened(http, "a", bot=bot)
    await world.platform.rooms.chat.personas.finish()
    found = await persona(http, await opened(http, "b", bot=bot))
    assert found["method"] == method
    assert all(one["tokens"] <= found["budget_tokens"] for one in found["versions"])


@pytest.mark.both_databases
async def test_versions_go_with_the_user_and_the_character(database: Database) -> None:
    world, http = await world_with(database)
    pushed = (await http.post("/characters", json={"name": "M", "description": LONG})).json()
    await opened(http, "a", character=pushed["id"])
    talk = await opened(http, "b")
    await world.platform.rooms.chat.personas.finish()
    assert await stored(database) == 4
    assert (await http.delete(f"/characters/{pushed['id']}")).status_code == 204
    assert await stored(database) == 2
    gone = await http.post("/users/erase", json={"user_id": "b"})
    assert gone.status_code < 300, gone.text
    assert await stored(database) == 0
    assert (await http.get(f"/conversations/{talk}/persona")).status_code == 404


async def test_one_endless_sentence_is_refused_as_before(database: Database) -> None:
    _, http = await world_with(database)
    body = {"user_id": "a", "consent": True, "bot": {"name": "L", "memory": "lamp " * 400}}
    refused = await http.post("/conversations", json=body)
    assert (refused.status_code, refused.json()["error"]) == (422, "persona_too_long")
