"""Lorebooks over HTTP: from a card to the prompt, recorded with the turn."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.chat import Sender
from guanaco.lore import Lorebook, LoreEntry
from guanaco.prompts import PRESETS, ChatTemplatePrompt
from guanaco_server.database.database import Database
from guanaco_server.prompts.layouts import Utterance
from tests.fixtures.cards import V1, V3, card_png, charx, png
from tests.fixtures.world import WORD_TOKENIZER, World
from tests.integration.test_characters import FILE, TEMPLATE, begin, push


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    return world


def card(*entries: dict[str, Any], **book: Any) -> dict[str, Any]:
    made = copy.deepcopy(V3)
    made["data"]["character_book"] = {**book, "extensions": {"mine": 1}, "entries": list(entries)}
    return made


GEESE = {
    "keys": ["goose", "geese"],
    "content": "@@depth 4\n{{char}} fears geese, {{user}}.",
    "enabled": True,
    "insertion_order": 1,
    "extensions": {},
}
ISLES = {
    "keys": ["isl(and|e)s?"],
    "use_regex": True,
    "content": "The islands drift.",
    "enabled": True,
    "insertion_order": 2,
    "extensions": {"x": None},
}
ALWAYS = {
    "keys": [],
    "constant": True,
    "content": "It is 1890.",
    "enabled": True,
    "insertion_order": 3,
    "extensions": {},
}
OFF = {
    "keys": ["goose"],
    "content": "Never.",
    "enabled": False,
    "insertion_order": 4,
    "extensions": {},
}


async def say(http: httpx.AsyncClient, conversation_id: str, content: str) -> None:
    said = await http.post(f"/conversations/{conversation_id}/messages", json={"content": content})
    assert said.status_code == 200, said.text


async def test_an_entry_stands_where_it_was_told_and_stays_there(world: World) -> None:
    http = await world.http(Role.BACKEND)
    given = card(GEESE, ISLES, ALWAYS, OFF)
    made = await push(http, given)
    assert (await http.get(f"/characters/{made['id']}/card")).json() == given
    talk = (await begin(http, made["id"], greeting=1))["conversation_id"]
    await say(http, talk, "Hello.")
    await say(http, talk, "I saw geese.")
    first = world.model_server.generations[-1].prompt
    await say(http, talk, "A goose again, near the isles.")
    prompt = world.model_server.generations[-1].prompt
    assert "It is 1890.\n" in prompt.partition("####")[0]
    assert prompt.count("Marlowe fears geese, Kim.\nKim: I saw geese.\n") == 1
    assert prompt.count("fears geese") == 1
    assert "The islands drift.\nKim: A goose again, near the isles.\n" in prompt
    assert "Never." not in prompt
    kept = first[: first.index("Answer Kim")]
    assert prompt.startswith(kept), "the prefix cache holds"


@pytest.mark.both_databases
async def test_what_was_told_is_recorded_and_read_by_another_process(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, card(GEESE, ISLES))
    talk = (await begin(http, made["id"], greeting=-1))["conversation_id"]
    await say(http, talk, "geese")
    before = world.model_server.generations[-1].prompt
    read = (await http.get(f"/conversations/{talk}")).json()["messages"]
    assert [one.get("lore") for one in read] == [[0], None]
    world.replies.forget([talk])
    answer = await http.post(f"/conversations/{talk}/regenerate")
    assert answer.status_code == 200
    assert world.model_server.generations[-1].prompt == before


@pytest.mark.both_databases
async def test_a_message_of_the_version_before_has_nothing_told(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, card(GEESE))
    talk = (await begin(http, made["id"], greeting=-1))["conversation_id"]
    await say(http, talk, "geese")
    async with world.database.write() as session:
        await session.execute(text("UPDATE messages SET lore = NULL"))
    world.replies.forget([talk])
    await say(http, talk, "Go on.")
    prompt = world.model_server.generations[-1].prompt
    assert prompt.count("fears geese") == 1
    assert prompt.index("Kim: geese") < prompt.index("fears geese") < prompt.index("Kim: Go on.")


async def test_entries_without_room_are_left_out_of_the_prompt(world: World) -> None:
    http = await world.http(Role.BACKEND)
    book = {"entries": [{"keys": ["goose"], "content": "honk " * 1_600}], "token_budget": 4_096}
    bot = {"name": "Ada", "memory": "An owl.", "lorebook": book}
    opened = await http.post("/conversations", json={"user_id": "u", "consent": True, "bot": bot})
    await say(http, opened.json()["conversation_id"], "a goose")
    prompt = world.model_server.generations[-1].prompt
    assert "honk" not in prompt
    assert "a goose" in prompt


@pytest.mark.parametrize(
    ("formatter", "part"),
    [
        (PRESETS["pygmalion"], "Geese bite.\nKim: goose\n"),
        (
            PRESETS["chatml"],
            "<|im_start|>system\nGeese bite.<|im_end|>\n<|im_start|>user\nKim: goose",
        ),
        (FILE, "Kim: [Geese bite.]\n\ngoose\n"),
        (ChatTemplatePrompt(), "[user][Geese bite.]\n\ngoose\n"),
    ],
    ids=("pygmalion", "chatml", "file", "chat template"),
)
async def test_each_kind_of_prompt_places_an_entry_before_the_message(
    world: World, formatter: Any, part: str
) -> None:
    key = "c" * 64
    await world.store_artifact(
        key, {"tokenizer.json": WORD_TOKENIZER, "chat_template.jinja": TEMPLATE}
    )
    book = Lorebook(entries=(LoreEntry(content="Geese bite.", keys=("goose",)),))
    prompt = await world.prompts.render(
        formatter=formatter,
        artifact_key=key,
        max_input_tokens=900,
        bot=BOTS["ada"].model_copy(update={"lorebook": book}),
        user_name="Kim",
        turns=[Utterance(Sender.USER, "goose", (0,))],
    )
    assert part in prompt


@pytest.mark.both_databases
@pytest.mark.parametrize("spec", ["v3", "png", "charx", "v1", "form"])
async def test_edited_book_is_a_new_version_and_the_rest_stays(world: World, spec: str) -> None:
    http = await world.http(Role.BACKEND)
    uploads: dict[str, Any] = {"v3": V3, "v1": V1, "form": {"name": "Marlowe"}}
    uploads |= {
        "png": card_png(V3),
        "charx": charx(V3, {"assets/icon/images/main.png": png(width=9)}),
    }
    made = await push(http, uploads[spec])
    book = {
        "entries": [{"keys": ["goose"], "content": "Geese bite.", "scan_depth": 2}],
        "scan_depth": 3,
        "recursion": 1,
    }
    changed = await http.put(f"/characters/{made['id']}/lorebook", json=book)
    assert changed.status_code == 201, changed.text
    now = changed.json()
    assert (now["version"], now["name"], now["has_picture"]) == (
        2,
        made["name"],
        made["has_picture"],
    )
    assert [one["content"] for one in now["lorebook"]["entries"]] == ["Geese bite."]
    assert now["lorebook"]["entries"][0]["scan_depth"] == 2
    assert now["lorebook"]["recursion"] == 1
    assert len(now["assets"]) == len(made["assets"])
    none = await http.delete(f"/characters/{made['id']}/lorebook")
    assert "lorebook" not in none.json()
    older = await http.get(f"/characters/{made['id']}", params={"version": 2})
    assert older.json()["lorebook"] == now["lorebook"]


MANY = [{"keys": [f"k{n}"], "content": "x"} for n in range(10_000)]
BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], "character_book is not an object"),
    "a damaged entry": ({"entries": ["x"]}, "entry 0 is not an object"),
    "no list": ({"entries": 3}, "entries are not a list"),
    "keys of another kind": (
        {"entries": [{"keys": [3]}]},
        "entry 0 has keys that are not a list of texts",
    ),
    "10,000 entries": ({"entries": MANY}, "has 10,000 entries; 300 are allowed"),
    "a key of much text": ({"entries": [{"keys": ["x" * 500_000]}]}, "entry 0 cannot be used"),
    "a catastrophic pattern": (
        {"entries": [{"keys": ["(a+)+b"], "use_regex": True}]},
        "could take too long",
    ),
    "a budget of no number": (
        {"entries": [], "token_budget": "much"},
        "token_budget that is not a number",
    ),
    "an endless order": (
        {"entries": [{"insertion_order": 1e300}]},
        "insertion_order that is not a number",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_book_is_refused_in_a_sentence(world: World, case: str) -> None:
    book, sentence = BAD[case]
    made = card()
    made["data"]["character_book"] = book
    http = await world.http(Role.BACKEND)
    answer = await http.post("/characters", content=json.dumps(made).encode())
    assert answer.status_code == 422
    message = answer.json()["detail"]
    assert sentence in message
    assert "\n" not in message
    assert len(message) < 300


async def test_a_bots_own_book_is_checked_as_a_cards_is(world: World) -> None:
    http = await world.http(Role.BACKEND)
    book = {"entries": [{"keys": ["(a+)+b"], "is_regex": True, "content": "x"}]}
    body = {"user_id": "u", "consent": True, "bot": {"name": "Ada", "lorebook": book}}
    answer = await http.post("/conversations", json=body)
    assert answer.status_code == 422
    assert "could take too long" in answer.json()["detail"]
