"""Requests that cannot be read, or hold what cannot be stored, are refused in one sentence that says where."""

from __future__ import annotations

from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.talking import talking

JSON = {"Content-Type": "application/json"}


async def refused(answer: Any, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


async def test_a_body_that_is_not_json_is_named(database: Database) -> None:
    _, http, _ = await talking(database)
    broken = await http.post("/conversations", content="{'a'", headers=JSON)
    assert "is not JSON: " in await refused(broken)
    untyped = await http.post(
        "/conversations", content="{}", headers={"Content-Type": "text/plain"}
    )
    assert "Content-Type: application/json" in await refused(untyped)
    empty = await http.post("/conversations", headers=JSON)
    assert "no body" in await refused(empty)


async def test_a_nul_is_refused_in_every_field(database: Database) -> None:
    world, http, conversation = await talking(database)
    opened = {"user_id": "ann\0", "bot": {"name": "Luna"}, "consent": True}
    assert (await refused(await http.post("/conversations", json=opened))).startswith("user_id: ")
    rated = {"thumbs_up": True, "text": "nice\0"}
    answer = await http.post(f"/conversations/{conversation}/feedback", json=rated)
    assert (await refused(answer)).startswith("text: There is a NUL")
    await world.greet(http, conversation)
    spelled = {"thumbs_up": True, "text": "a backslash and u0000: \\u0000"}
    kept = await http.post(f"/conversations/{conversation}/feedback", json=spelled)
    assert kept.is_success, kept.text
    developer = await world.http(Role.DEVELOPER, "ada")
    deep = {"bot": {"name": "Luna", "memory": "\0"}, "turns": []}
    preview = await developer.post("/submissions/acme-tiny_v1/preview", json=deep)
    assert (await refused(preview)).startswith("bot.memory: ")


async def test_a_flag_is_no_number_and_a_word_no_flag(database: Database) -> None:
    world, http, conversation = await talking(database)
    path = f"/conversations/{conversation}/feedback"
    assert "thumbs_up" in await refused(await http.post(path, json={"thumbs_up": "off"}))
    developer = await world.http(Role.DEVELOPER, "ada")
    sent = {"repo": "acme/tiny", "params": {"max_output_tokens": True}}
    detail = await refused(await developer.post("/submissions", json=sent))
    assert detail.startswith("params.max_output_tokens: It is a number")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/conversations", "GET, POST"),
        ("PUT", "/conversations/{id}", "DELETE, GET, PATCH"),
        ("PATCH", "/conversations/{id}/feedback", "DELETE, GET, POST, PUT"),
    ],
)
async def test_all_methods_of_a_path_are_allowed(
    database: Database, method: str, path: str, allowed: str
) -> None:
    _, http, conversation = await talking(database)
    answer = await http.request(method, path.format(id=conversation))
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
