"""Characters over HTTP: cards in and out, who may see them, and conversations that name one."""

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
from guanaco.prompts import PRESETS, ChatTemplatePrompt, PromptFile, PromptPart
from guanaco_server.database.database import Database
from guanaco_server.http.body_limit import MAX_BODY_BYTES
from guanaco_server.prompts.layouts import Utterance
from tests.fixtures.cards import V1, V2, V3, card_png, charx, png
from tests.fixtures.newer_version import extend, rewrite
from tests.fixtures.world import WORD_TOKENIZER, World

ICON = {"assets/icon/images/main.png": png(width=9)}


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    return world


async def push(http: httpx.AsyncClient, card: Any, **params: Any) -> Any:
    content = card if isinstance(card, bytes) else json.dumps(card).encode()
    answer = await http.post("/characters", content=content, params=params)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def begin(http: httpx.AsyncClient, character: str, **more: Any) -> Any:
    body = {"user_id": "u1", "user_name": "Kim", "consent": True, "character": character}
    answer = await http.post("/conversations", json=body | more)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.mark.parametrize("card", [V1, V2, V3], ids=("v1", "v2", "v3"))
async def test_a_pushed_card_is_given_back_as_it_was(world: World, card: dict[str, Any]) -> None:
    http = await world.http(Role.BACKEND)
    uploads = [json.dumps(card).encode(), card_png(card, "ccv3" if card is V3 else "chara")]
    uploads += [charx(card, ICON)] if card is V3 else []
    for upload in uploads:
        made = await push(http, upload)
        back = await http.get(f"/characters/{made['id']}/card")
        assert back.json() == card
        for form in ("png", "charx"):
            file = await http.get(f"/characters/{made['id']}/card", params={"format": form})
            assert file.headers["content-disposition"].startswith("attachment")
            again = await push(http, file.content)
            found = (await http.get(f"/characters/{again['id']}/card")).json()
            if form == "png" or card is V3:
                assert found == card
            else:
                data = card.get("data", card)
                assert {name: found["data"][name] for name in data} == data


@pytest.mark.both_databases
async def test_a_version_never_changes_and_the_newest_is_the_usual(world: World) -> None:
    http = await world.http(Role.DEVELOPER, "ada")
    first = await push(http, V2)
    changed = copy.deepcopy(V3)
    changed["data"]["name"] = "Commodore Marlowe"
    answer = await http.post(f"/characters/{first['id']}/versions", json=changed)
    assert (answer.status_code, answer.json()["version"]) == (201, 2)
    newest = (await http.get(f"/characters/{first['id']}")).json()
    assert (newest["name"], newest["newest"], newest["nickname"]) == (
        "Commodore Marlowe",
        2,
        "Marlowe",
    )
    older = (await http.get(f"/characters/{first['id']}", params={"version": 1})).json()
    assert older == first | {"newest": 2}
    missing = await http.get(f"/characters/{first['id']}", params={"version": 3})
    assert missing.json()["error"] == "character_not_found"
    listed = (await http.get("/characters")).json()["items"]
    assert [(one["name"], one["version"], one["greetings"]) for one in listed] == [
        ("Commodore Marlowe", 2, 3)
    ]


async def test_a_private_character_is_its_accounts_alone(world: World) -> None:
    owner, other = await world.http(Role.BACKEND, "app"), await world.http(Role.BACKEND, "other")
    made = await push(owner, V2)
    path = f"/characters/{made['id']}"
    for place in ("", "/card", "/picture", "/bot"):
        assert (await other.get(path + place)).json()["error"] == "character_not_found"
    body = {"user_id": "u", "consent": True, "character": made["id"]}
    refused = await other.post("/conversations", json=body)
    assert (refused.status_code, refused.json()["error"]) == (404, "character_not_found")
    public = await owner.patch(path, json={"is_public": True})
    assert public.json()["is_public"] is True
    assert (await other.get(path)).status_code == 200
    assert (await other.get("/characters?whose=public")).json()["items"][0]["owner"] == "app"
    assert (await other.get("/characters")).json()["items"] == []
    for denied in (
        await other.patch(path, json={"is_public": False}),
        await other.post(f"{path}/versions", json=V2),
        await other.delete(path),
    ):
        assert (denied.status_code, denied.json()["error"]) == (403, "forbidden")


async def test_a_conversation_keeps_the_version_that_it_began_with(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, V3)
    opened = await begin(http, made["id"])
    assert opened["character"] == f"{made['id']}@1"
    assert opened["first_message"] == "Welcome aboard, Kim!"
    changed = copy.deepcopy(V3)
    changed["data"]["description"] = "A clockwork owl."
    await http.post(f"/characters/{made['id']}/versions", json=changed)
    kept = (await http.get(f"/conversations/{opened['conversation_id']}")).json()
    assert kept["character"] == f"{made['id']}@1"
    assert kept["bot"]["memory"].startswith("Stay in your part.\nMarlowe steers the sky-ship")
    assert (await begin(http, made["id"]))["character"] == f"{made['id']}@2"
    older = await begin(http, f"{made['id']}@1", greeting=2)
    assert (older["character"], older["first_message"]) == (
        f"{made['id']}@1",
        "Geese! Did you see any?",
    )
    listed = (await http.get("/conversations")).json()["items"]
    assert {one["character"] for one in listed} == {f"{made['id']}@1", f"{made['id']}@2"}
    await http.delete(f"/characters/{made['id']}")
    said = await http.post(
        f"/conversations/{opened['conversation_id']}/messages", json={"content": "Ahoy!"}
    )
    assert said.status_code == 200


async def test_the_prompt_has_names_greeting_and_instructions_behind_the_turns(
    world: World,
) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, V3)
    opened = await begin(http, made["id"])
    for content in ("Are we lost?", "Truly?"):
        await http.post(
            f"/conversations/{opened['conversation_id']}/messages", json={"content": content}
        )
    prompt = world.model_server.generations[-1].prompt
    assert prompt.startswith("Marlowe's Persona: Stay in your part.\nMarlowe steers the sky-ship")
    assert "Marlowe: Welcome aboard, Kim!\nKim: Are we lost?\n" in prompt
    assert prompt.endswith("Kim: Truly?\nAnswer Kim in two sentences.\nMarlowe:")


async def test_chance_is_the_conversations_own_and_does_not_move(world: World) -> None:
    http = await world.http(Role.BACKEND)
    dice = {
        "name": "Dice",
        "description": "{{roll:1000}} {{random:a,b,c}}",
        "greetings": ["{{roll:1000}}"],
    }
    made = await push(http, dice)
    opened = [await begin(http, made["id"]) for _ in range(6)]
    bots = [
        (await http.get(f"/conversations/{one['conversation_id']}")).json()["bot"] for one in opened
    ]
    assert len({bot["memory"] for bot in bots}) > 1
    assert [bot["first_message"] for bot in bots] == [one["first_message"] for one in opened]
    params = {"seed": opened[0]["conversation_id"], "user_name": "Kim"}
    again = await http.get(f"/characters/{made['id']}/bot", params=params)
    assert again.json() == bots[0]


async def test_a_request_has_a_bot_or_a_character(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, V2)
    body = {"user_id": "u", "consent": True}
    bot = {"name": "Luna"}
    for wrong, sentence in (
        (body, "needs a bot or a character"),
        (body | {"bot": bot, "character": made["id"]}, "not both"),
        (body | {"bot": bot, "greeting": 1}, "a bot has its first_message"),
        (body | {"character": made["id"], "greeting": 9}, "3 greetings, so there is none"),
        (body | {"character": "chr_1"}, "No character 'chr_1'"),
        (body | {"character": f"{made['id']}@7"}, "@7"),
    ):
        answer = await http.post("/conversations", json=wrong)
        assert answer.status_code in (404, 422), answer.text
        assert sentence in answer.json()["detail"]


async def test_a_picture_is_served_as_a_picture_only(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, card_png(V2, "chara", width=5))
    picture = await http.get(f"/characters/{made['id']}/picture")
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert b"chara" not in picture.content
    page = {"assets/icon/images/main.png": b"<html><script>alert(1)</script>"}
    without = await push(http, charx(V3, page))
    assert without["has_picture"] is False
    refused = await http.get(f"/characters/{without['id']}/picture")
    assert (refused.status_code, refused.json()["error"]) == (404, "not_found")


@pytest.mark.both_databases
async def test_limits_of_an_account_are_told_in_a_sentence(database: Database) -> None:
    size = len(json.dumps(V2).encode())
    world = World(database, characters_per_account=2, character_bytes_per_account=3 * size)
    http = await world.http(Role.BACKEND)
    made = await push(http, V2)
    await push(http, V2)
    third = await http.post("/characters", json=V2)
    assert (third.status_code, third.json()["error"]) == (409, "quota_exceeded")
    assert "2 characters" in third.json()["detail"]
    versions = f"/characters/{made['id']}/versions"
    assert (await http.post(versions, content=json.dumps(V2))).status_code == 201
    full = await http.post(versions, content=json.dumps(V2))
    assert (full.status_code, full.json()["error"]) == (409, "quota_exceeded")
    assert (await http.delete(f"/characters/{made['id']}")).status_code == 204
    await push(http, V2)


async def test_upload_may_exceed_other_requests_up_to_its_limit(
    database: Database,
) -> None:
    world = World(database, character_max_bytes=1_000_000)
    http = await world.http(Role.BACKEND)
    large = {"assets/other/noise.bin": bytes(range(256)) * 3_000}
    upload = charx(V3, large, method=0)
    assert MAX_BODY_BYTES < len(upload) < 1_000_000
    made = await push(http, upload)
    again = await http.post("/characters", content=upload, headers={"Idempotency-Key": "once"})
    same = await http.post("/characters", content=upload, headers={"Idempotency-Key": "once"})
    assert (again.json(), same.headers["idempotent-replayed"]) == (same.json(), "true")
    assert again.json()["id"] != made["id"]
    for path in ("/characters", f"/characters/{made['id']}/versions"):
        answer = await http.post(path, content=upload + b"x" * 300_000)
        assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")
    answer = await http.post("/conversations", content=upload)
    assert answer.status_code == 413
    bomb = charx(V3, {"a": b"\x00" * 1_000_001})
    assert "unpacks to more" in (await http.post("/characters", content=bomb)).json()["detail"]


@pytest.mark.both_databases
async def test_erasing_an_accounts_characters_leaves_nothing_of_them(world: World) -> None:
    app, other = await world.http(Role.BACKEND, "app"), await world.http(Role.BACKEND, "other")
    admin = await world.http(Role.ADMIN)
    for http in (app, app, other):
        await push(http, charx(V3, ICON), public="true")
    assert (await app.delete("/characters?account=other")).status_code == 403
    assert (await app.delete("/characters")).json() == {"characters": 2, "versions": 2}
    assert len((await admin.get("/characters?whose=public")).json()["items"]) == 1
    gone = await admin.delete("/characters?account=other")
    assert gone.json() == {"characters": 1, "versions": 1}
    assert (await admin.delete("/characters?account=nobody")).json()["error"] == "account_not_found"
    async with world.database.read() as session:
        for table in ("characters", "character_versions", "character_files"):
            assert await session.scalar(text(f"SELECT count(*) FROM {table}")) == 0
    log = (await admin.get("/audit")).json()["items"]
    assert [one["subject"] for one in log if one["action"] == "erase characters"] == [
        "of other",
        "of app",
    ]


@pytest.mark.both_databases
async def test_pages_of_characters_have_each_one_once(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = [(await push(http, {"name": f"C{number}"}))["id"] for number in range(5)]
    found, cursor = [], None
    while cursor is not None or not found:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/characters", params=params)).json()
        found += [one["id"] for one in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(found) == sorted(made)
    assert (await http.get("/characters?cursor=nonsense")).status_code == 422


async def test_without_a_character_a_prompt_is_what_it_was(world: World) -> None:
    """Held to the very text: persona, scenario, turns, nothing else."""
    http = await world.http(Role.BACKEND)
    bot = BOTS["ada"]
    assert "post_history" not in bot.model_dump(mode="json")
    opened = await http.post(
        "/conversations",
        json={"user_id": "u", "user_name": "{{char}}", "consent": True, "bot": bot.model_dump()},
    )
    assert set(opened.json()) == {"conversation_id", "submission_id"}
    await http.post(
        f"/conversations/{opened.json()['conversation_id']}/messages",
        json={"content": "{{roll:6}} <user>"},
    )
    assert world.model_server.generations[-1].prompt == (
        f"Ada's Persona: {bot.memory}\n####\n{bot.prompt}\n<START>\n"
        f"Ada: {bot.first_message}\n{{{{char}}}}: {{{{roll:6}}}} <user>\nAda:"
    )


FILE = PromptFile(
    parts=(
        PromptPart(name="persona", content="{{ memory }}\n", role="system"),
        PromptPart(name="chat", each="turn", content="{{ name }}: {{ message }}\n"),
        PromptPart(name="reply", content="{{ bot_name }}:", role="system"),
    )
)
TEMPLATE = b"{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"


@pytest.mark.parametrize(
    ("formatter", "end"),
    [
        (PRESETS["vicuna"], "Kim: Hi\n### Instruction:\nShort.\n### Response:\nAda:"),
        (
            PRESETS["chatml"],
            "Kim: Hi<|im_end|>\n<|im_start|>system\nShort.<|im_end|>\n<|im_start|>assistant\nAda:",
        ),
        (FILE, "Kim: Hi\nShort.\nAda:"),
        (ChatTemplatePrompt(), "[user]Hi\nShort.\n[assistant]"),
    ],
    ids=("vicuna", "chatml", "file", "chat template"),
)
async def test_each_kind_of_prompt_places_instructions_behind_the_turns(
    world: World, formatter: Any, end: str
) -> None:
    key = "c" * 64
    files = {"tokenizer.json": WORD_TOKENIZER, "chat_template.jinja": TEMPLATE}
    await world.store_artifact(key, files)
    bot = BOTS["ada"].model_copy(update={"name": "Ada", "post_history": "Short."})
    prompt = await world.prompts.render(
        formatter=formatter,
        artifact_key=key,
        max_input_tokens=900,
        bot=bot,
        user_name="Kim",
        turns=[Utterance(Sender.USER, "Hi")],
    )
    assert prompt.endswith(end)


@pytest.mark.both_databases
async def test_card_of_the_next_version_is_read_and_returned(world: World) -> None:
    http = await world.http(Role.BACKEND)
    made = await push(http, V3)
    key = {"character_id": made["id"]}
    texts = await extend(world.database, "character_versions", "texts", **key)
    await rewrite(world.database, "character_versions", key, spec="v4")
    found = (await http.get(f"/characters/{made['id']}")).json()
    assert (found["spec"], found["name"]) == ("v4", texts["name"])
    assert (await http.get(f"/characters/{made['id']}/card")).json() == V3
    refused = await http.get(f"/characters/{made['id']}/card?format=png")
    assert (refused.status_code, refused.json()["error"]) == (409, "newer_version_needed")
    assert (await begin(http, made["id"]))["first_message"] == "Welcome aboard, Kim!"


async def test_a_card_full_of_macros_begins_a_conversation(world: World) -> None:
    http = await world.http(Role.BACKEND)
    full = {"name": "M", "first_mes": "{{roll:20d6}}" * 600, "description": "{{pick:a,b}}" * 1_300}
    made = await push(http, full)
    opened = await begin(http, made["id"])
    assert opened["first_message"].isdigit()
    bot = (await http.get(f"/conversations/{opened['conversation_id']}")).json()["bot"]
    assert set(bot["memory"]) in ({"a"}, {"b"})
