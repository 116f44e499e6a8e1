"""Prompts that a developer tries out through the server."""

from __future__ import annotations

from typing import Any

import httpx

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.world import BOT, World

HI = [{"sender": "user", "content": "Hi"}]
FILE = {"parts": [{"name": "chat", "each": "turn", "content": "<{{ sender }}> {{ message }}\n"}]}


async def rendered(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"bot": BOT.model_dump(), "turns": HI, **fields}
    return await http.post("/prompts/render", json=body)


async def test_a_prompt_is_tried_without_a_model_and_with_ones_own(database: Database) -> None:
    world = World(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    own = await world.publish(ada)
    http = await world.http(Role.DEVELOPER, "ada")
    file = {"kind": "file", **FILE}
    tried = (await rendered(http, formatter=file)).json()
    assert tried["prompt"] == "<bot> Ahoy!\n<user> Hi\n"
    assert (tried["tokens"], tried["max_input_tokens"]) == (9, 1_024)
    await http.put(f"/submissions/{own}/aliases/champion")
    for name in (own, "acme/tiny@champion"):
        found = (await rendered(http, submission=name, max_input_tokens=64)).json()
        assert found["prompt"].endswith("\nYou: Hi\nLuna:")
        assert found["max_input_tokens"] == 64


async def test_what_cannot_be_tried_is_refused_in_a_sentence(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    stranger = await world.http(Role.DEVELOPER, "bob")

    async def refused(**fields: Any) -> tuple[int, str]:
        answer = await rendered(stranger, **fields)
        return answer.status_code, answer.json()["error"]

    assert await refused() == (422, "invalid_input")
    assert await refused(submission="acme-tiny_v1") == (404, "submission_not_found")
    assert await refused(formatter={"kind": "chat_template"}) == (422, "missing_file")
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    parts = [{"name": "bomb", "content": loop}, *FILE["parts"]]
    assert (await refused(formatter={"kind": "file", "parts": parts}))[0] in (422, 503)
    assert await refused(formatter={"kind": "file", "parts": []}) == (422, "invalid_input")
    assert await refused(formatter=FILE, max_input_tokens=1) == (422, "invalid_input")
    backend = await world.http(Role.BACKEND, "app")
    assert (await rendered(backend)).status_code == 403
