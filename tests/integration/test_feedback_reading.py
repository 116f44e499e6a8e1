"""A developer reads what the user read: every turn with its marks and times, the parameters, and what the bot began with."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from guanaco.accounts import Role
from guanaco.feedback_csv import CSV_COLUMNS
from guanaco.submissions import GenerationParams
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.rating import rate_all
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


async def test_viewer_shows_marks_times_parameters_and_the_first_message(
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


@pytest.mark.both_databases
@pytest.mark.slow
async def test_reading_goes_on_and_back_over_pages_in_both_orders(world: WebWorld) -> None:
    backend = await world.accounts.built_in("app", Role.BACKEND)
    more = (("acme-tiny_v1", f"user-{number}", number % 5 == 0) for number in range(29))
    await rate_all(world, backend, more)  # with the world's own more than a page
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    oldest = [item["id"] for item in (await read(world, BASE, limit=100)).json()["items"]]
    assert len(oldest) == 30
    for begin, expected in ((BASE, oldest[::-1]), (f"{BASE}?order=oldest", oldest)):
        forwards = await walk(ada, begin, "later")
        assert [rating_id for rating_id, _ in forwards] == expected
        backwards = await walk(ada, forwards[-1][1], "earlier", most=10)  # over a page's beginning
        assert [rating_id for rating_id, _ in backwards] == expected[:19:-1]
    up = await walk(ada, f"{BASE}?rating=up", "later")
    assert len(up) == 7
    assert len(await walk(ada, up[-1][1], "earlier")) == 7


async def walk(
    browser: httpx.AsyncClient, path: str, link: str, *, most: int = 100
) -> list[tuple[str, str]]:
    """The chosen rating and its address, page after page, by following a link to the end or ``most`` times."""
    seen = []
    while True:
        page = (await browser.get(path)).text
        chosen = re.search(r'aria-current="true" data-id="([^"]+)"', page)
        assert chosen, path
        seen.append((chosen[1], path))
        following = re.search(f'id="{link}" rel="\\w+" href="([^"]+)"', page)
        if following is None or len(seen) == most:
            return seen
        path = html.unescape(following[1])


async def test_a_whole_page_is_gone_back_to_by_a_link(world: WebWorld) -> None:
    backend = await world.accounts.built_in("app", Role.BACKEND)
    more = (("acme-tiny_v1", f"user-{number}", True) for number in range(30))
    await rate_all(world, backend, more)
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    first = (await ada.get(BASE)).text
    assert "Page before" not in first
    second = (await ada.get(linked(first, "More"))).text
    assert ids_of((await ada.get(linked(second, "Page before"))).text) == ids_of(first)
    assert set(ids_of(first)) & set(ids_of(second)) == set()


@pytest.mark.both_databases
async def test_viewer_filters_by_bot_in_any_case_and_by_length(
    world: WebWorld,
) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    for query, count in (
        ("bot=lUNA", 1),
        ("bot=Lun", 0),
        ("length=2&up_to=2", 1),
        ("up_to=1", 0),
    ):
        assert len(ids_of((await ada.get(f"{BASE}?{query}")).text)) == count, query
    page = (await ada.get(f"{BASE}?up_to=9")).text
    for form in ("jsonl", "csv", "parquet"):
        assert f'{BASE}.{form}?up_to=9"' in page
        assert (await ada.get(f"{BASE}.{form}?up_to=9")).status_code == 200


def ids_of(page: str) -> list[str]:
    return re.findall('data-id="([^"]+)"', page)


def linked(page: str, words: str) -> str:
    found = re.search(f'href="([^"]+)">{words}<', page)
    assert found, words
    return html.unescape(found[1])
