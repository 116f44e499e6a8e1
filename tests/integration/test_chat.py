"""A conversation over HTTP, on both databases, with a scripted model server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from guanaco.accounts import Role
from guanaco.chat import MessageRequest, Reply
from guanaco.errors import ConversationBusy
from guanaco_server.chat.conversations.history import History, history_reader
from guanaco_server.chat.gateway.turns.turn_log import LEASE_S
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.http.body_limit import MAX_BODY_BYTES
from tests.fixtures.talking import contents, parse, talking
from tests.fixtures.world import BOT, World, eventually

PIECES = ("One", " two", " three")


class Hasty(World):
    changes = {"first_token_timeout_s": 0.3}


async def test_without_consent_nothing_is_stored(database: Database) -> None:
    _world, http, _ = await talking(database)
    for refused in ({}, {"consent": False}):
        body = {"user_id": "u", "bot": {"name": "Luna"}, **refused}
        answer = await http.post("/conversations", json=body)
        assert (answer.status_code, answer.json()["error"]) == (422, "consent_required")
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(ConversationRow)) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"age": 30}, "age"),
        ({"user_id": ""}, "user_id"),
        ({"user_name": "two\nlines"}, "user_name: It should be 1 to 64 characters on one line"),
        ({"bot": {"name": "Luna", "voice": "low"}}, "bot.voice"),
    ],
)
async def test_conversation_with_unknown_fields_is_refused_in_one_sentence(
    database: Database, body: dict[str, object], says: str
) -> None:
    _, http, _ = await talking(database)
    whole = {"user_id": "u", "bot": {"name": "Luna"}, "consent": True} | body
    answer = await http.post("/conversations", json=whole)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert says in answer.json()["detail"]
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(ConversationRow)) == 1


@pytest.mark.both_databases
async def test_reply_whole_or_streamed_equals_what_is_stored(
    database: Database,
) -> None:
    _, http, conversation = await talking(
        database, Script((" Hi", " there \n")), Script(("So", "  it", " is. "))
    )
    whole = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert whole.json()["content"] == "Hi there"
    streamed = await http.post(
        f"/conversations/{conversation}/messages", json={"content": "Is it?", "stream": True}
    )
    *tokens, (last, reply) = parse(streamed.text)
    assert last == "done"
    assert "".join(data["text"] for _, data in tokens) == reply["content"] == "So  it is."
    assert await contents(http, conversation) == [
        ("user", "Hello", False),
        ("bot", "Hi there", False),
        ("user", "Is it?", False),
        ("bot", "So  it is.", False),
    ]


@pytest.mark.both_databases
async def test_cached_new_conversation_equals_what_would_be_read(
    database: Database,
) -> None:
    world, http, _ = await talking(database)
    heard: list[History] = []
    world.conversations.on_opened(heard.append)
    conversation = await world.open(http)
    assert heard == [await history_reader(database).read(conversation)]


@pytest.mark.both_databases
async def test_both_turns_are_stored_before_the_final_event(database: Database) -> None:
    world, http, conversation = await talking(database)
    backend = await world.account(Role.BACKEND, "app")
    events = await world.replies.send(backend, conversation, MessageRequest(content="Hello"))
    async for event in events:
        if isinstance(event, Reply):
            assert (await contents(http, conversation))[-1] == ("bot", event.content, False)


@pytest.mark.both_databases
async def test_of_two_messages_at_once_one_is_refused(database: Database) -> None:
    go_on = asyncio.Event()
    _, http, conversation = await talking(database, Script(PIECES, go_on=go_on))
    both = [
        asyncio.create_task(
            http.post(f"/conversations/{conversation}/messages", json={"content": text})
        )
        for text in ("first", "second")
    ]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    go_on.set()
    assert sorted(answer.status_code for answer in await asyncio.gather(*both)) == [200, 409]
    assert len(await contents(http, conversation)) == 2


@pytest.mark.both_databases
async def test_turn_of_a_dead_process_is_free_after_its_lease(
    database: Database,
) -> None:
    world, http, conversation = await talking(database)
    backend = await world.account(Role.BACKEND, "app")
    abandoned = await world.replies.send(backend, conversation, MessageRequest(content="Hello"))
    with pytest.raises(ConversationBusy):
        await world.replies.send(backend, conversation, MessageRequest(content="Hello?"))
    world.clock.advance(LEASE_S + 1)
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert answer.status_code == 200
    await abandoned.aclose()


@pytest.mark.parametrize("stream", [True, False])
async def test_fault_before_first_token_has_a_status_and_is_repeatable(
    database: Database, stream: bool
) -> None:
    _, http, conversation = await talking(database, Script((), fault="died"), Script())
    body = {"content": "Hello", "stream": stream}
    failed = await http.post(f"/conversations/{conversation}/messages", json=body)
    assert (failed.status_code, failed.json()["error"]) == (503, "model_unavailable")
    assert failed.headers["Retry-After"]
    repeated = await http.post(f"/conversations/{conversation}/messages", json=body)
    assert repeated.status_code == 200
    assert [turn[0] for turn in await contents(http, conversation)] == ["user", "bot"]


@pytest.mark.both_databases
async def test_fault_after_first_token_is_an_event_and_regenerates(
    database: Database,
) -> None:
    world, http, conversation = await talking(
        database, Script(("Once", " upon"), fault="died"), Script(("Better.",))
    )
    broken = await http.post(
        f"/conversations/{conversation}/messages", json={"content": "A story", "stream": True}
    )
    assert [event for event, _ in parse(broken.text)] == ["token", "token", "error"]
    assert parse(broken.text)[-1][1]["error"] == "model_unavailable"
    assert world.deployments.take_suspects() == {"acme-tiny_v1"}
    again = await http.post(f"/conversations/{conversation}/regenerate")
    assert again.json()["content"] == "Better."


@pytest.mark.both_databases
async def test_client_that_leaves_cancels_generation_and_frees_the_turn(
    database: Database,
) -> None:
    world, http, conversation = await talking(
        database, Script(PIECES, go_on=asyncio.Event()), Script()
    )
    backend = await world.account(Role.BACKEND, "app")
    events = await world.replies.send(backend, conversation, MessageRequest(content="Hello"))
    assert await anext(events) == ("One",)
    await events.aclose()
    assert world.model_server.cancelled == 1
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert answer.status_code == 200


@pytest.mark.both_databases
async def test_closing_the_stream_cancels_generation_and_frees_the_turn(
    database: Database,
) -> None:
    world, http, conversation = await talking(
        database, Script(PIECES, go_on=asyncio.Event()), Script()
    )
    path = f"/conversations/{conversation}/messages"
    await leave_after_the_first_token(world, http, path)

    async def is_free() -> bool:
        return (await http.post(path, json={"content": "Hello"})).status_code == 200

    await eventually(is_free)
    assert world.model_server.cancelled == 1
    assert [turn[0] for turn in await contents(http, conversation)] == ["user", "bot"]


@pytest.mark.both_databases
async def test_a_regeneration_that_fails_leaves_the_old_reply(database: Database) -> None:
    _, http, conversation = await talking(
        database, Script(("Old.",)), Script(("Half",), fault="died"), Script(("New.",))
    )
    await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    failed = await http.post(f"/conversations/{conversation}/regenerate")
    assert (failed.status_code, failed.json()["error"]) == (503, "model_unavailable")
    assert await contents(http, conversation) == [
        ("user", "Hello", False),
        ("bot", "Old.", False),
    ]
    again = await http.post(f"/conversations/{conversation}/regenerate", json={"stream": True})
    assert parse(again.text)[-1][1]["content"] == "New."
    assert [turn[2] for turn in await contents(http, conversation)] == [False, True, False]


@pytest.mark.both_databases
async def test_a_reply_that_outlived_its_lease_is_not_recorded(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Late.",)), Script(("Prompt.",)))
    backend = await world.account(Role.BACKEND, "app")
    late = await world.replies.send(backend, conversation, MessageRequest(content="Hello"))
    assert await anext(late) == ("Late.",)
    world.clock.advance(LEASE_S + 1)
    await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    with pytest.raises(ConversationBusy):
        await anext(late)
    assert [turn[1] for turn in await contents(http, conversation)] == ["Hello", "Prompt."]


@pytest.mark.both_databases
async def test_regenerating_marks_the_old_reply_deleted(database: Database) -> None:
    _, http, conversation = await talking(database, Script(("Old.",)), Script(("New.",)))
    nothing = await http.post(f"/conversations/{conversation}/regenerate")
    assert (nothing.status_code, nothing.json()["error"]) == (409, "nothing_to_regenerate")
    await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    await http.post(f"/conversations/{conversation}/regenerate", json={"stream": False})
    assert await contents(http, conversation) == [
        ("user", "Hello", False),
        ("bot", "Old.", True),
        ("bot", "New.", False),
    ]


async def test_an_empty_reply_is_sampled_again_and_never_shown(database: Database) -> None:
    _, http, conversation = await talking(
        database, Script((" \n",)), Script(("There.",)), Script(("",))
    )
    first = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert first.json()["content"] == "There."
    second = await http.post(f"/conversations/{conversation}/messages", json={"content": "Well?"})
    assert second.json()["content"] == "…"


async def test_a_slow_first_token_is_a_timeout(database: Database) -> None:
    _, http, conversation = await talking(database, Script(delay_s=60), make=Hasty)
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert (answer.status_code, answer.json()["error"]) == (504, "model_timed_out")


async def test_prompt_is_cut_to_budget_and_too_long_message_refused(
    database: Database,
) -> None:
    world, http, conversation = await talking(database, max_input_tokens=32)
    for number in range(4):
        await http.post(
            f"/conversations/{conversation}/messages", json={"content": f"message {number} a b c"}
        )
    prompt = world.model_server.generations[-1].prompt
    assert len(prompt.split()) <= 32
    assert BOT.memory in prompt
    assert "message 3" in prompt
    assert "message 0" not in prompt
    long = await http.post(
        f"/conversations/{conversation}/messages", json={"content": "word " * 100}
    )
    assert (long.status_code, long.json()["error"]) == (422, "message_too_long")


async def test_a_message_of_a_megabyte_is_refused(database: Database) -> None:
    _, http, conversation = await talking(database)
    path = f"/conversations/{conversation}/messages"
    answer = await http.post(path, json={"content": "a" * 1_000_000})
    assert (answer.status_code, answer.json()["error"]) == (413, "payload_too_large")

    async def pieces() -> Any:
        for _ in range(10):
            yield b"a" * (MAX_BODY_BYTES // 5)

    undeclared = await http.post(path, content=pieces())
    assert undeclared.status_code == 413
    assert await contents(http, conversation) == []


async def test_another_backends_conversation_is_not_found(database: Database) -> None:
    world, _, conversation = await talking(database)
    stranger = await world.http(Role.BACKEND, "stranger")
    for answer in (
        await stranger.get(f"/conversations/{conversation}"),
        await stranger.post(f"/conversations/{conversation}/messages", json={"content": "Hi"}),
        await stranger.post(f"/conversations/{conversation}/regenerate"),
        await stranger.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True}),
        await stranger.get("/conversations/conv_none"),
    ):
        assert (answer.status_code, answer.json()["error"]) == (404, "conversation_not_found")


async def test_what_a_stranger_asks_for_leaves_memory_as_it_is(database: Database) -> None:
    world, http, conversation = await talking(database)
    stranger = await world.http(Role.BACKEND, "stranger")
    path = f"/conversations/{conversation}/messages"
    await http.post(path, json={"content": "Hi"})
    assert (await stranger.post(path, json={"content": "Hi"})).status_code == 404
    kept = world.histories.take(conversation)
    assert kept is not None
    assert kept.message_count == 2
    assert (await stranger.post(path, json={"content": "Hi"})).status_code == 404
    assert world.histories.take(conversation) is None, "what is read for nobody is not kept"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_message_is_posted_and_nothing_else(database: Database, method: str) -> None:
    _, http, conversation = await talking(database)
    answer = await http.request(method, f"/conversations/{conversation}/messages")
    assert (answer.status_code, answer.json()["error"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_a_preview_shows_its_prompt_and_records_nothing(database: Database) -> None:
    world, http, conversation = await talking(database)
    developer = await world.http(Role.DEVELOPER, "ada")
    body = {"bot": BOT.model_dump(), "turns": [{"sender": "user", "content": "Hello"}]}
    reply = (await developer.post("/submissions/acme-tiny_v1/preview", json=body)).json()
    assert reply["prompt"] == world.model_server.generations[-1].prompt
    assert "Luna's Persona: Luna keeps a lighthouse." in reply["prompt"]
    assert await contents(http, conversation) == []
    other = await world.http(Role.DEVELOPER, "bob")
    assert (await other.post("/submissions/acme-tiny_v1/preview", json=body)).status_code == 404


async def test_a_preview_streams_and_is_for_developers_only(database: Database) -> None:
    world, backend, _ = await talking(database)
    developer = await world.http(Role.DEVELOPER, "ada")
    path = "/submissions/acme-tiny_v1/preview"
    body = {"bot": BOT.model_dump(), "stream": True}
    *tokens, (last, reply) = parse((await developer.post(path, json=body)).text)
    assert last == "done"
    assert "".join(data["text"] for _, data in tokens) == reply["content"]
    assert (reply["message_id"], bool(reply["prompt"])) == (None, True)
    refused = await backend.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")


async def leave_after_the_first_token(world: World, http: httpx.AsyncClient, path: str) -> None:
    """Be a client that asks for a stream and hangs up; httpx's own transport waits for the whole body."""
    body = json.dumps({"content": "Hello", "stream": True}).encode()
    headers = {"content-type": "application/json", "authorization": http.headers["authorization"]}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": f"/api/v1{path}",
        "raw_path": f"/api/v1{path}".encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])
    heard = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if request := next(requests, None):
            return request
        await heard.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b"event: token" in message.get("body", b""):
            heard.set()

    async with asyncio.timeout(30):
        await world.app(scope, receive, send)
