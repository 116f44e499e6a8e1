"""A developer reads what the user read: every turn with its marks and times, the parameters, and what the bot began with."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from guanaco.accounts import Role
from guanaco.feedback_csv import CSV_COLUMNS
from guanaco.submissions import GenerationParams
from guanaco_server.database.database import Database
from guanaco_server.deployments.memory_server import Script
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import signed_in
from tests.fixtures.world import BOT

BASE = "/submissions/acme-tiny_v1/feedback"
BOT_THAT_TELLS = BOT.model_copy(update={"first_message": "Ahoy Zelda! Write to nia@example.org."})
SAID = "Ahoy <USER>! Write to <EMAIL>."


@pytest.fixture
async def world(database: Database) -> WebWorld:
    """With one rating, of a conversation whose only reply was regenerated."""
    world = WebWorld(database, Script(pieces=("North.",)), Script(pieces=("South.",)))
    await world.publish(
        await world.account(Role.DEVELOPER, "ada"), params=GenerationParams(temperature=0.42)
    )
    async with await world.http(Role.BACKEND) as backend:
        body = {"user_id": "u1", "user_name": "Zelda", "bot": BOT_THAT_TELLS.model_dump(), "consent": True}  # fmt: skip
        opened = (await backend.post("/conversations", json=body)).json()["conversation_id"]
        path = f"/conversations/{opened}"
        for call, sent in (
            ("messages", {"content": "Where to?"}),
            ("regenerate", None),
            ("feedback", {"thumbs_up": True, "text": "Fine."}),
        ):
            answer = await backend.post(f"{path}/{call}", json=sent)
            assert answer.is_success, answer.text
    return world


async def read(world: WebWorld, path: str, **query: Any) -> httpx.Response:
    async with await world.http(Role.DEVELOPER, "ada") as developer:
        answer = await developer.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer


async def test_the_viewer_shows_marks_times_parameters_and_how_the_bot_began(
    world: WebWorld,
) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    (rating,) = (await read(world, BASE)).json()["items"]
    for path in (BASE, f"{BASE}/{rating['id']}"):
        page = (await ada.get(path)).text
        for text in (
            "how this character begins",
            "Ahoy &lt;USER&gt;! Write to &lt;EMAIL&gt;.",
            "replaced by another reply",
            "in the place of another reply",
            "0.42",
        ):
            assert page.count(text) == 1, (path, text)
        assert page.count("first token after") == 2


async def test_the_first_message_is_in_every_form_without_personal_data(world: WebWorld) -> None:
    (rating,) = (await read(world, BASE)).json()["items"]
    assert rating["first_message"] == SAID
    table = pq.read_table(
        io.BytesIO((await read(world, f"{BASE}/export", format="parquet")).content)
    )
    assert table.to_pylist()[0]["first_message"] == SAID


async def test_a_csv_has_parameters_and_times_and_marks_deleted_turns(world: WebWorld) -> None:
    text = (await read(world, f"{BASE}/export", format="csv")).text
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert tuple(row) == CSV_COLUMNS
    assert row["first_message"] == SAID
    assert row["messages"] == "user: Where to?\nbot (deleted): North.\nbot (again): South."
    assert json.loads(row["params"])["temperature"] == 0.42
    assert [bool(timings) for timings in json.loads(row["timings"])] == [False, True, True]
