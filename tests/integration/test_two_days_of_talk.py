"""A character card, 400 turns over two days, a process that is started again, a prompt that is changed by a label and back."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.parameters import GenerationParams
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.world import World

FACT = "My ferret is called Quillon."
CARD = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Captain Marlowe",
        "description": "{{char}} steers the sky-ship Thistle and calls {{user}} sailor.",
        "first_mes": "Welcome aboard, {{user}}!",
    },
}
PARAMS = GenerationParams(max_input_tokens=512, summary_tokens=64, recall_tokens=64)
DAY_S = 86_400


@pytest.mark.slow
async def test_fact_of_turn_3_is_in_prompt_of_turn_400(database: Database) -> None:
    world = World(database, Script(("Aye, aye.",)))
    ada = await world.account(Role.DEVELOPER, "ada")
    developer = await world.http(Role.DEVELOPER, "ada")
    for asked in ("OLD {bot_name}:", "NEW {bot_name}:"):
        prompt = {"response_template": asked}
        pushed = await developer.post("/prompts", json={"name": "talk", "prompt": prompt})
        assert pushed.status_code == 201, pushed.text
    await world.publish(ada, params=PARAMS, prompt="talk@production", prompt_version=1)
    await label(world, developer, 1)

    http = await world.http(Role.BACKEND, "app")
    character = (await http.post("/characters", json=CARD)).json()["id"]
    body = {"user_id": "kim", "user_name": "Kim", "consent": True, "character": character}
    talk = (await http.post("/conversations", json=body)).json()["conversation_id"]
    for turn in range(1, 401):
        if turn == 100:
            await label(world, developer, 2)
        if turn == 200:
            world.clock.advance(DAY_S)
            world.restart()
            world.deployments.note_replicas("acme-tiny_v1", ("memory://acme-tiny_v1",))
            await world.routing.refresh()
            http = await world.http(Role.BACKEND, "app")
            developer = await world.http(Role.DEVELOPER, "ada")
        if turn == 300:
            await label(world, developer, 1)
        content = FACT if turn == 3 else f"In watch {turn} the wind was fair and the sea was calm."
        said = await http.post(f"/conversations/{talk}/messages", json={"content": content})
        assert said.status_code == 200, said.text
        prompts = [one.prompt for one in world.model_server.generations]
        prompt = [one for one in prompts if not one.endswith("Notes:")][-1]
        ends = "NEW Captain Marlowe:" if 100 <= turn < 300 else "OLD Captain Marlowe:"
        assert prompt.endswith(ends)
        await world.platform.rooms.chat.summaries.finish()
    assert f"You: {FACT}" not in prompt
    assert FACT in prompt

    admin = await world.http(Role.ADMIN, "root")
    memory: Any = (await admin.get(f"/conversations/{talk}/memory")).json()
    assert FACT in memory["summaries"][-1]["text"]
    assert (await admin.delete(f"/conversations/{talk}/memory")).status_code == 204
    assert (await admin.get(f"/conversations/{talk}/memory")).json()["summaries"] == []


async def label(world: World, developer: httpx.AsyncClient, version: int) -> None:
    moved = await developer.put("/prompts/talk/labels/production", json={"version": version})
    assert moved.status_code == 200, moved.text
    await world.routing.refresh()
