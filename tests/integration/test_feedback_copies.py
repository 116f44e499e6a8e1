"""Tests what developers read of a rating: an anonymized copy, filtered, exported, made again."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.database.database import Database
from guanaco_server.feedback import copies
from guanaco_server.feedback.copies import VERSION, CopyService, Pseudonyms
from guanaco_server.feedback.exports import export
from tests.fixtures.world import BOT, World, eventually

PATH = "/submissions/acme-tiny_v1/feedback"


class Talkative(World):
    """Users who say what one asks them to."""

    backend: httpx.AsyncClient
    developer: httpx.AsyncClient

    async def rate(
        self,
        user: str = "alice",
        says: tuple[str, ...] = ("Hello",),
        thumbs_up: bool = True,
        words: str = "fine",
        name: str = "You",
        bot: str = "Luna",
    ) -> str:
        """The conversation's id."""
        body = {
            "user_id": user,
            "user_name": name,
            "bot": BOT.model_dump() | {"name": bot},
            "consent": True,
        }
        opened = (await self.backend.post("/conversations", json=body)).json()
        path = f"/conversations/{opened['conversation_id']}"
        for line in says:
            answer = await self.backend.post(f"{path}/messages", json={"content": line})
            assert answer.status_code == 200, answer.text
        rating = {"thumbs_up": thumbs_up, "text": words}
        answer = await self.backend.post(f"{path}/feedback", json=rating)
        assert answer.status_code == 201, answer.text
        self.clock.advance(60)
        conversation_id: str = opened["conversation_id"]
        return conversation_id

    async def items(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.developer.get(PATH, params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    async def said(self, **query: Any) -> list[str]:
        return [item["text"] for item in await self.items(**query)]


@pytest.fixture
async def world(database: Database) -> AsyncIterator[Talkative]:
    world = Talkative(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    world.backend = await world.http(Role.BACKEND)
    world.developer = await world.http(Role.DEVELOPER, "ada")
    async with world.backend, world.developer:
        yield world


async def test_a_developer_reads_tags_in_the_place_of_personal_data(world: Talkative) -> None:
    await world.rate(
        says=("I am Zelda, call 415-555-2671", "or jane@example.org"),
        words="ask zelda, @zelda_99",
        name="Zelda",
        bot="Zelda's friend",
    )
    (item,) = await world.items()
    assert item["text"] == "ask <USER>, <HANDLE>"
    assert item["bot_name"] == "<USER>'s friend"
    said = [message["content"] for message in item["messages"] if message["sender"] == "user"]
    assert said == ["I am <USER>, call <PHONE>", "or <EMAIL>"]


async def test_a_rating_carries_bot_timings_parameters_and_regenerated_turns(
    world: Talkative,
) -> None:
    opened = await world.open(world.backend)
    await world.backend.post(f"/conversations/{opened}/messages", json={"content": "Hello"})
    await world.backend.post(f"/conversations/{opened}/regenerate")
    await world.backend.post(f"/conversations/{opened}/feedback", json={"thumbs_up": False})
    (item,) = await world.items()
    assert (item["bot_name"], item["competition"], item["length"]) == ("Luna", "open", 2)
    assert item["params"]["temperature"] == 1.0
    marks = [(m["sender"], m["is_deleted"], m["is_regenerated"]) for m in item["messages"]]
    assert marks == [("user", False, False), ("bot", True, False), ("bot", False, True)]
    assert item["messages"][0]["timings"] is None
    assert set(item["messages"][2]["timings"]) == {"ttft_ms", "total_ms"}


@pytest.mark.both_databases
async def test_filters_can_be_combined(world: Talkative) -> None:
    at = world.clock.now
    await world.rate("alice", words="Lovely LIGHTHOUSE", bot="Luna")
    middle = at()
    await world.rate("bob", words="meh", thumbs_up=False, says=("a", "b", "c"), bot="Max")
    await world.rate("alice", words="100% ok", says=("ÄPFEL and_more",), bot="Max")
    alice = (await world.items())[0]["user"]
    assert await world.said(rating="up") == ["Lovely LIGHTHOUSE", "100% ok"]
    assert await world.said(rating="down") == ["meh"]
    assert await world.said(search="lighthouse") == ["Lovely LIGHTHOUSE"]
    assert await world.said(search="äpfel") == ["100% ok"]
    assert await world.said(search="0%") == ["100% ok"]
    assert await world.said(search="d_m") == ["100% ok"]
    assert await world.said(search="_") == ["100% ok"]
    assert await world.said(bot="Max") == ["meh", "100% ok"]
    assert await world.said(user=alice) == ["Lovely LIGHTHOUSE", "100% ok"]
    assert await world.said(since=middle.isoformat()) == ["meh", "100% ok"]
    assert await world.said(until=middle.isoformat()) == ["Lovely LIGHTHOUSE"]
    assert await world.said(min_length=6) == ["meh"]
    assert await world.said(max_length=2) == ["Lovely LIGHTHOUSE", "100% ok"]
    assert await world.said(user=alice, bot="Max", rating="up", limit=1) == ["100% ok"]
    assert await world.said(user=alice, rating="down") == []


@pytest.mark.both_databases
async def test_pages_can_begin_with_the_newest(world: Talkative) -> None:
    for number in range(3):
        await world.rate(f"user-{number}", words=str(number))
    query: dict[str, Any] = {"order": "newest", "limit": 2}
    first = (await world.developer.get(PATH, params=query)).json()
    await world.rate("late", words="late")
    second = (
        await world.developer.get(PATH, params=query | {"cursor": first["next_cursor"]})
    ).json()
    assert [item["text"] for item in first["items"] + second["items"]] == ["2", "1", "0"]
    end = (await world.developer.get(PATH, params=query | {"cursor": second["next_cursor"]})).json()
    assert end == {"items": [], "next_cursor": None}


async def test_one_rating_can_be_linked_to_by_its_developer_only(world: Talkative) -> None:
    await world.rate(words="one")
    (item,) = await world.items()
    path = f"/feedback/{item['id']}"
    assert (await world.developer.get(path)).json() == item
    async with await world.http(Role.DEVELOPER, "bob") as other:
        assert (await other.get(path)).json()["error"] == "feedback_not_found"
    assert (await world.developer.get("/feedback/fb_none")).status_code == 404


SENSELESS_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"rating": "meh"}, "rating"),
    ({"search": ""}, "search"),
    ({"search": "x" * 201}, "search"),
    ({"search": "a\0b"}, "NUL"),
    ({"since": "yesterday"}, "since"),
    ({"since": "2026-01-01T00:00:00"}, "since"),
    ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "before"),
    ({"min_length": -1}, "min_length"),
    ({"min_length": 5, "max_length": 4}, "over max_length"),
    ({"ratting": "up"}, "ratting"),
    ({"format": "xlsx"}, "format"),
]


async def test_a_filter_that_makes_no_sense_gets_a_sentence(
    world: Talkative, subtests: pytest.Subtests
) -> None:
    for query, word in SENSELESS_FILTERS:
        with subtests.test(word):
            for path in (PATH, f"{PATH}/export"):
                answer = await world.developer.get(path, params=query)
                assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
                assert word in answer.json()["detail"]


@pytest.mark.slow
async def test_an_export_holds_the_same_in_every_format(world: Talkative) -> None:
    await world.rate(words="=HYPERLINK(1)", says=("hi, “you”\n=1+1",))
    await world.rate("bob", thumbs_up=False, words="")
    files = {
        form: await world.developer.get(f"{PATH}/export", params={"format": form})
        for form in ("jsonl", "csv", "parquet")
    }
    lines = [json.loads(line) for line in files["jsonl"].text.splitlines()]
    assert lines == await world.items()
    rows = list(csv.DictReader(io.StringIO(files["csv"].content.decode(), newline="")))
    assert [row["id"] for row in rows] == [line["id"] for line in lines]
    assert rows[0]["text"] == "'=HYPERLINK(1)"
    assert rows[0]["messages"].startswith("user: hi, “you”\n=1+1\nbot: ")
    assert [row["thumbs_up"] for row in rows] == ["true", "false"]
    table = pq.read_table(io.BytesIO(files["parquet"].content)).to_pylist()
    assert [(row["id"], row["thumbs_up"], row["text"]) for row in table] == [
        (line["id"], line["thumbs_up"], line["text"]) for line in lines
    ]
    assert table[0]["messages"][0]["content"] == "hi, “you”\n=1+1"
    assert json.loads(table[0]["params"]) == lines[0]["params"]


async def test_an_export_of_nothing_is_a_whole_file(
    world: Talkative, subtests: pytest.Subtests
) -> None:
    for form in ("jsonl", "csv", "parquet"):
        with subtests.test(form):
            file = await world.developer.get(f"{PATH}/export", params={"format": form})
            assert file.status_code == 200
            if form == "parquet":
                assert pq.read_table(io.BytesIO(file.content)).num_rows == 0


async def test_without_pyarrow_there_is_no_parquet_but_a_sentence(
    world: Talkative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda _name: None)
    file = await world.developer.get(f"{PATH}/export", params={"format": "parquet"})
    assert (file.status_code, file.json()["error"]) == (501, "export_unsupported")


@pytest.mark.both_databases
async def test_an_exports_cursor_leads_to_what_came_after_it_began(
    world: Talkative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guanaco_server.feedback.service.EXPORT_PAGE", 1)
    for number in range(3):
        await world.rate(f"user-{number}", words=f"old {number}", thumbs_up=number != 1)
    ada = await world.account(Role.DEVELOPER, "ada")
    begun = await world.feedback.export(ada, "acme-tiny_v1")
    chunks = [await anext(begun.chunks)]
    await world.rate("late", words="late")
    await world.copies.make()
    chunks += [chunk async for chunk in begun.chunks]
    assert [json.loads(chunk)["text"] for chunk in chunks] == ["old 0", "old 1", "old 2"]
    query = {"cursor": begun.next_cursor, "rating": "up"}
    new = await world.developer.get(f"{PATH}/export", params=query)
    assert [json.loads(line)["text"] for line in new.text.splitlines()] == ["late"]
    again = await world.developer.get(
        f"{PATH}/export", params={"cursor": new.headers["X-Next-Cursor"]}
    )
    assert again.text == ""
    assert again.headers["X-Next-Cursor"] == new.headers["X-Next-Cursor"]


@pytest.mark.both_databases
async def test_each_rating_has_one_copy_although_several_make_copies(world: Talkative) -> None:
    for number in range(8):
        await world.rate(f"user-{number}", words=str(number))
    await asyncio.gather(*(world.copies.make() for _ in range(4)))
    assert await world.said() == [str(number) for number in range(8)]
    assert await world.copies.make() == 0


@pytest.mark.both_databases
async def test_what_is_edited_or_deleted_leaves_the_developers_copy(world: Talkative) -> None:
    """The copy is dropped in the transaction of the change, before it is made again."""
    conversation = await world.rate(says=("My ferret is Quillon", "It bit Ottoline"))
    await world.copies.make()
    (copied,) = await world.items()
    assert "Quillon" in str(copied)
    path = f"/conversations/{conversation}"
    said = (await world.backend.get(path)).json()["messages"]
    first, second = [one["id"] for one in said if one["sender"] == "user"]
    edited = await world.backend.patch(f"{path}/messages/{first}", json={"content": "I have a pet"})
    assert edited.status_code == 200, edited.text
    assert "Quillon" not in await kept_texts(world)
    await world.copies.make()
    gone = await world.backend.delete(f"{path}/messages/{second}")
    assert gone.status_code == 204, gone.text
    assert "Ottoline" not in await kept_texts(world)
    await world.copies.make()
    (copied,) = await world.items()
    assert "I have a pet" in str(copied)
    assert "Quillon" not in str(copied)
    assert "Ottoline" not in str(copied)


async def kept_texts(world: World) -> str:
    async with world.database.read() as session:
        return str(list(await session.scalars(text("SELECT document FROM feedback_copies"))))


async def test_new_version_makes_every_copy_again_in_its_place(world: Talkative) -> None:
    await world.rate(words="first")
    (before,) = await world.items()

    class Stricter(Anonymizer):
        def text(self, text: str, user_name: str = "") -> str:
            return text.replace("first", "<STRICTER>")

    newer = CopyService(
        world.database,
        world.submissions,
        world.conversations,
        Pseudonyms(b"key"),
        Stricter(["US"]),
        world.running.variants_of,
        version=VERSION + 1,
    )
    assert await newer.make() == 1
    assert await newer.make() == 0
    assert [item | {"text": "first"} for item in await world.items()] == [before]
    assert await world.said() == ["<STRICTER>"]
    assert await world.said(search="first") == []


async def test_a_text_on_which_the_anonymizer_breaks_is_withheld(world: Talkative) -> None:
    class Broken(Anonymizer):
        def text(self, text: str, user_name: str = "") -> str:
            if "poison" in text:
                raise RecursionError
            return text

    await world.rate(words="poison")
    await world.rate("bob", words="fine")
    broken = CopyService(
        world.database,
        world.submissions,
        world.conversations,
        Pseudonyms(b"key"),
        Broken(["US"]),
        world.running.variants_of,
    )
    assert await broken.make() == 2
    assert await world.said() == [copies.WITHHELD, "fine"]
    assert "poison" not in json.dumps(await world.items())


async def test_the_loop_copies_as_soon_as_a_rating_is_given(world: Talkative) -> None:
    loop = world.platform.rooms.feedback.copy_loop
    await loop.start()
    try:
        await world.rate(words="quick")

        async def is_copied() -> bool:
            async with world.database.read() as session:
                found = await session.scalar(text("SELECT count(*) FROM feedback_copies"))
            return found == 1

        async def is_noted() -> bool:
            return world.metrics.registry.get_sample_value("guanaco_feedback_lag_seconds") == 0

        await eventually(is_copied)
        await eventually(is_noted)
    finally:
        await loop.stop()


async def test_only_an_admin_reads_the_original_and_it_is_logged(world: Talkative) -> None:
    conversation = await world.rate("user-17", says=("jane@example.org",), words="by Jane")
    (item,) = await world.items()
    path = f"/feedback/{item['id']}/raw"
    for role in (Role.DEVELOPER, Role.BACKEND):
        async with await world.http(role, f"a-{role.value}") as http:
            assert (await http.get(path)).status_code == 403
            assert (await http.get("/audit")).status_code == 403
    async with await world.http(Role.ADMIN, "root") as admin:
        raw = (await admin.get(path)).json()
        await admin.get(f"/conversations/{conversation}")
        assert (await admin.get("/feedback/fb_none/raw")).json()["error"] == "feedback_not_found"
        log = (await admin.get("/audit", params={"limit": 2})).json()
        rest = (await admin.get("/audit", params={"cursor": log["next_cursor"]})).json()
    assert (raw["user_id"], raw["text"]) == ("user-17", "by Jane")
    assert raw["conversation"]["messages"][0]["content"] == "jane@example.org"
    noted = [
        (one["account"], one["action"], one["subject"]) for one in log["items"] + rest["items"]
    ]
    assert noted == [
        ("root", "read conversation", conversation),
        ("root", "read conversation", conversation),
        ("root", "read raw feedback", item["id"]),
    ]


async def test_a_backends_own_reading_is_not_noted(world: Talkative) -> None:
    conversation = await world.rate()
    assert (await world.backend.get(f"/conversations/{conversation}")).status_code == 200
    assert (await world.audit.list(10)).items == []


async def test_nothing_is_stored_without_consent(world: Talkative) -> None:
    body = {"user_id": "u", "bot": BOT.model_dump(), "consent": False}
    answer = await world.backend.post("/conversations", json=body)
    assert answer.json()["error"] == "consent_required"
    async with world.database.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM conversations")) == 0
