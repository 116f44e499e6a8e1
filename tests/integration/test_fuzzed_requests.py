"""Requests that schemathesis made of the API's document, replayed in every role: none is answered with a 5xx,
nor with a status, a content type or a body that the document does not name.

`make bench-hostile` sends thousands of new ones to a running platform; those that it keeps are in tests/fuzz/corpus/http.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.http import api_document
from tests.fixtures.documented import Documented
from tests.fixtures.world import World

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "http" / "requests.jsonl"
ENDLESS = (
    "/events"  # a stream of events ends when its reader leaves, which an in-process client cannot
)


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    return world


@pytest.mark.slow
@pytest.mark.parametrize("role", [None, Role.DEVELOPER, Role.BACKEND, Role.ADMIN])
async def test_no_kept_request_breaks_the_platform(world: World, role: Role | None) -> None:
    name = "ada" if role is Role.DEVELOPER else f"fuzz-{role}"
    key = await world.key(role, name) if role else ""
    backend = await world.http(Role.BACKEND, "app")
    ids = {"submission_id": "acme-tiny_v1", "conversation_id": await world.open(backend)}
    documented = Documented(api_document.read_file())
    broken = []
    async with world.http_with({"Authorization": f"Bearer {key}"} if key else {}) as http:
        for line in CORPUS.read_text().splitlines():
            kept = json.loads(line)
            path = kept["path"]
            for wanted, value in ids.items():
                path = path.replace(f"@@{wanted}@@", value)
            if ENDLESS in path:
                continue
            answer = await http.request(
                kept["method"],
                f"http://guanaco{path}",
                content=base64.b64decode(kept["body"]),
                headers={"Content-Type": kept["type"]} if kept["type"] else {},
            )
            is_refusal = answer.status_code == 503 and "retry-after" in answer.headers
            if answer.status_code >= 500 and not is_refusal:
                broken.append((answer.status_code, kept["method"], path, answer.text[:200]))
            elif problem := documented.problem(kept["operation"], answer):
                broken.append((answer.status_code, kept["method"], path, problem))
    assert not broken, "\n".join(map(str, broken))
