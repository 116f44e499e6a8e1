"""Requests that schemathesis made of the API's document, replayed in every role: none is answered with a 5xx,
nor with a status, a content type or a body that the document does not name.

`make bench-hostile` sends thousands of new ones to a running platform; those that it keeps are in tests/fuzz/corpus/http.
"""

from __future__ import annotations

import base64
import json
from functools import cache
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


@pytest.mark.slow
async def test_no_kept_request_breaks_the_platform(database: Database) -> None:
    """Each role has a submission and a conversation of its own, for the requests delete what they can."""
    world, broken = World(database), []
    ada = await world.account(Role.DEVELOPER, "ada")
    for number, role in enumerate((None, Role.DEVELOPER, Role.BACKEND, Role.ADMIN), 1):
        submission_id = await world.publish(ada, f"acme-tiny_v{number}")
        broken += [(role, *one) for one in await broken_by(world, role, submission_id)]
    assert not broken, "\n".join(map(str, broken))


@cache
def documented() -> Documented:
    return Documented(api_document.read_file())


async def broken_by(
    world: World, role: Role | None, submission_id: str
) -> list[tuple[int, str, str, str]]:
    name = "ada" if role is Role.DEVELOPER else f"fuzz-{role}"
    key = await world.key(role, name) if role else ""
    backend = await world.http(Role.BACKEND, "app")
    ids = {"submission_id": submission_id, "conversation_id": await world.open(backend)}
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
            elif problem := documented().problem(kept["operation"], answer):
                broken.append((answer.status_code, kept["method"], path, problem))
    return broken
