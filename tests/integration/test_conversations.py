"""Tests what an app does with its conversations beside talking: lists, imports, edits, deletes, and judges single replies."""

from __future__ import annotations

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.talking import contents, talking
from tests.fixtures.world import BOT, World

SUBMISSION = "acme-tiny_v1"
HISTORY = [{"sender": "user", "content": "Earlier"}, {"sender": "bot", "content": "Yes, earlier."}]


async def begin(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"user_id": "user-2", "bot": BOT.model_dump(), "consent": True, **fields}
    return await http.post("/conversations", json=body)


async def messages(http: httpx.AsyncClient, conversation: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await http.get(f"/conversations/{conversation}")).json()[
        "messages"
    ]
    return found


async def say(http: httpx.AsyncClient, conversation: str, content: str) -> None:
    path = f"/conversations/{conversation}/messages"
    answer = await http.post(path, json={"content": content})
    assert answer.status_code == 200, answer.text


def prompt(world: World) -> str:
    """Return what the model was asked last."""
    return world.model_server.generations[-1].prompt


@pytest.mark.both_databases
async def test_a_users_conversations_are_listed_newest_first_by_page(database: Database) -> None:
    world, http, first = await talking(database, Script(("Hi",)))
    opened = []
    for number in range(3):
        world.clock.advance(1)
        answer = await begin(http, external_id=f"chat-{number}", metadata={"shelf": str(number)})
        assert answer.status_code == 201, answer.text
        opened.append(answer.json()["conversation_id"])
    await say(http, opened[2], "Hello")
    page = (await http.get("/conversations", params={"user_id": "user-2", "limit": 2})).json()
    assert [one["conversation_id"] for one in page["items"]] == [opened[2], opened[1]]
    assert page["items"][0]["last_message"]["content"] == "Hi"
    assert (page["items"][1]["external_id"], page["items"][1]["metadata"]) == (
        "chat-1",
        {"shelf": "1"},
    )
    rest = await http.get("/conversations", params={"cursor": page["next_cursor"]})
    assert [one["conversation_id"] for one in rest.json()["items"]] == [opened[0], first]
    other = await world.http(Role.BACKEND, "other")
    assert (await other.get("/conversations")).json()["items"] == []
    assert (await http.get("/conversations", params={"cursor": "nonsense"})).status_code == 422


@pytest.mark.both_databases
async def test_external_id_is_unique_and_opening_twice_gives_one(database: Database) -> None:
    world, http, _ = await talking(database)
    first, again = [await begin(http, external_id="chat-7") for _ in range(2)]
    assert first.json() == again.json()
    taken = await begin(http, external_id="chat-7", user_id="somebody-else")
    assert (taken.status_code, taken.json()["error"]) == (409, "external_id_taken")
    other = await world.http(Role.BACKEND, "other")
    assert (await begin(other, external_id="chat-7")).json() != first.json()
    path = f"/conversations/{first.json()['conversation_id']}"
    changed = await http.patch(path, json={"metadata": {"pinned": "yes"}})
    assert changed.json()["metadata"] == {"pinned": "yes"}
    assert (await http.get(path)).json()["metadata"] == {"pinned": "yes"}
    assert (await other.patch(path, json={"metadata": {}})).status_code == 404
    many = {str(number): "" for number in range(17)}
    assert (await http.patch(path, json={"metadata": many})).status_code == 422


async def test_imported_history_is_read_by_the_model_but_not_measured(
    database: Database,
) -> None:
    world, http, _ = await talking(database, Script(("Hi",)))
    conversation = (await begin(http, history=HISTORY)).json()["conversation_id"]
    rating = {"thumbs_up": True}
    early = await http.post(f"/conversations/{conversation}/feedback", json=rating)
    assert early.json()["error"] == "nothing_to_rate"
    await say(http, conversation, "And now?")
    assert prompt(world).index("Yes, earlier.") < prompt(world).index("And now?")
    assert [one["is_imported"] for one in await messages(http, conversation)] == [
        True,
        True,
        False,
        False,
    ]
    assert (
        await http.post(f"/conversations/{conversation}/feedback", json=rating)
    ).status_code == 201
    developer = await world.http(Role.DEVELOPER, "ada")
    item = (await developer.get(f"/submissions/{SUBMISSION}/feedback")).json()["items"][0]
    assert (item["length"], len(item["messages"])) == (2, 4)


async def test_an_edited_message_is_what_the_model_reads_next(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)))
    await say(http, conversation, "Hello")
    asked, replied = [str(one["id"]) for one in await messages(http, conversation)]
    base = f"/conversations/{conversation}/messages"
    for message_id, content in ((asked, "Good evening"), (replied, "Well met")):
        edited = await http.patch(f"{base}/{message_id}", json={"content": content})
        assert edited.status_code == 200, edited.text
        assert edited.json()["edited_at"]
    await say(http, conversation, "Go on")
    assert "Good evening" in prompt(world)
    assert "Well met" in prompt(world)
    assert "Hello" not in prompt(world)
    assert (await http.patch(f"{base}/msg_0", json={"content": "x"})).status_code == 404
    other = await world.http(Role.ADMIN, "root")
    assert (await other.patch(f"{base}/{asked}", json={"content": "x"})).status_code == 404


async def test_a_deleted_message_is_gone_with_what_it_replaced(database: Database) -> None:
    world, http, conversation = await talking(
        database, Script(("One",)), Script(("Two",)), Script(("Three",))
    )
    await say(http, conversation, "Hello")
    await http.post(f"/conversations/{conversation}/regenerate")
    await say(http, conversation, "Go on")
    base = f"/conversations/{conversation}/messages"
    asked, _, second, further, third = [
        str(one["id"]) for one in await messages(http, conversation)
    ]
    assert (await http.delete(f"{base}/{third}")).status_code == 204
    assert (await http.delete(f"{base}/{second}")).status_code == 204
    left = [str(one["id"]) for one in await messages(http, conversation)]
    assert left == [asked, further]
    await http.delete(f"{base}/{asked}", params={"with_following": True})
    assert await messages(http, conversation) == []
    await say(http, conversation, "Anew")
    assert "Go on" not in prompt(world)
    assert [content for _, content, _ in await contents(http, conversation)] == ["Anew", "Three"]


async def test_one_of_several_swipes_is_chosen_and_kept(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("One",)), Script(("Two",)))
    await say(http, conversation, "Hello")
    await http.post(f"/conversations/{conversation}/regenerate")
    path = f"/conversations/{conversation}"
    swipes = (await http.get(f"{path}/swipes")).json()
    assert [(one["content"], one["is_deleted"]) for one in swipes] == [
        ("One", True),
        ("Two", False),
    ]
    chosen = await http.post(f"{path}/choice", json={"message_id": swipes[0]["id"]})
    assert (chosen.status_code, chosen.json()["content"]) == (200, "One")
    await say(http, conversation, "Go on")
    assert "One" in prompt(world)
    assert "Two" not in prompt(world)
    late = await http.post(f"{path}/choice", json={"message_id": swipes[1]["id"]})
    assert (late.status_code, late.json()["error"]) == (404, "message_not_found")


async def test_a_single_reply_can_be_rated_and_developers_see_it(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)))
    await say(http, conversation, "Hello")
    asked, replied = [str(one["id"]) for one in await messages(http, conversation)]
    await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": False})
    base = f"/conversations/{conversation}/messages"
    rated = await http.put(f"{base}/{replied}/rating", json={"thumbs_up": True})
    assert (rated.status_code, rated.json()["thumbs_up"]) == (200, True)
    developer = await world.http(Role.DEVELOPER, "ada")
    item = (await developer.get(f"/submissions/{SUBMISSION}/feedback")).json()["items"][0]
    assert (item["thumbs_up"], item["messages"][1]["thumbs_up"]) == (False, True)
    assert (await http.delete(f"{base}/{replied}/rating")).json()["thumbs_up"] is None
    refused = await http.put(f"{base}/{asked}/rating", json={"thumbs_up": True})
    assert refused.status_code == 422


@pytest.mark.both_databases
async def test_a_deleted_conversation_leaves_nothing_and_counts_no_more(
    database: Database,
) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)))
    await say(http, conversation, "Hello")
    await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
    await world.count()
    assert await world.scores.counts.kept() == {SUBMISSION: 1}
    path = f"/conversations/{conversation}"
    other = await world.http(Role.BACKEND, "other")
    assert (await other.delete(path)).status_code == 404
    assert (await http.delete(path)).status_code == 204
    await world.conversations.erasure_watch.look()
    for gone in (
        await http.get(path),
        await http.delete(path),
        await http.post(f"{path}/messages", json={"content": "?"}),
    ):
        assert (gone.status_code, gone.json()["error"]) == (404, "conversation_not_found")
    await world.count()
    assert await world.scores.counts.kept() == {SUBMISSION: 0}
    admin = await world.http(Role.ADMIN, "root")
    figures = (await admin.get(f"/submissions/{SUBMISSION}/metrics")).json()
    assert figures["thumbs_up"] == 0


async def test_a_backend_erases_its_own_users_only(database: Database) -> None:
    world, http, conversation = await talking(database)
    other = await world.http(Role.BACKEND, "other")
    theirs = await world.open(other)
    refused = await http.post("/users/erase", json={"user_id": "user-1", "account": "other"})
    assert refused.status_code == 403
    erased = await http.post("/users/erase", json={"user_id": "user-1"})
    assert erased.json()["conversations"] == 1
    assert (await http.get(f"/conversations/{conversation}")).status_code == 404
    assert (await other.get(f"/conversations/{theirs}")).status_code == 200


async def test_a_competition_asks_for_feedback_after_so_many_messages(database: Database) -> None:
    world, http, _ = await talking(database, Script(("Hi",)))
    admin = await world.http(Role.ADMIN, "root")
    rules = {"name": "Cup", "starts_at": world.clock.now().isoformat(), "feedback_after": 2}
    assert (await admin.put("/competitions/cup", json=rules)).status_code == 200
    conversation = (await begin(http, competition="cup", history=HISTORY[:0])).json()[
        "conversation_id"
    ]
    path, asked = f"/conversations/{conversation}/messages", []
    for number in range(3):
        world.histories.forget(conversation)  # it is read from the database
        reply = await http.post(path, json={"content": f"Message {number}"})
        asked.append(reply.json()["ask_for_feedback"])
    assert asked == [False, True, False]


async def test_only_the_configured_origins_may_call_from_a_browser(database: Database) -> None:
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    for origins, is_open in (((), False), (("https://app.example",), True)):
        world = World(database, cors_origins=origins)
        async with world.http_with({"Origin": "https://app.example"}) as browser:
            before = await browser.options("/conversations", headers=asks)
            allowed = before.headers.get("access-control-allow-origin")
            assert (before.status_code == 200, allowed == "https://app.example") == (
                is_open,
                is_open,
            )
            refused = await browser.get("/conversations")
            assert refused.status_code == 401
            assert ("access-control-allow-origin" in refused.headers) == is_open
        async with world.http_with({"Origin": "https://evil.example"}) as stranger:
            foreign = await stranger.get("/conversations")
            assert "access-control-allow-origin" not in foreign.headers


async def test_the_last_reply_goes_on_where_it_ended(database: Database) -> None:
    world, http, conversation = await talking(
        database,
        Script(("Once upon",), finish_reason="length"),
        Script((" a", " time", " "), finish_reason="stop"),
        Script((" ",)),
    )
    path = f"/conversations/{conversation}"
    nothing = await http.post(f"{path}/continue")
    assert (nothing.status_code, nothing.json()["error"]) == (409, "nothing_to_continue")
    await say(http, conversation, "Tell me a story.")
    asked = prompt(world)
    key = {"Idempotency-Key": "once"}
    streamed = await http.post(f"{path}/continue", json={"stream": True}, headers=key)
    assert prompt(world) == asked + " Once upon"
    assert 'data: {"text":" a"}' in streamed.text
    again = await http.post(f"{path}/continue", json={"stream": True}, headers=key)
    assert again.text == streamed.text
    (_, reply) = await messages(http, conversation)
    assert reply["content"] == "Once upon a time"
    empty = (await http.post(f"{path}/continue")).json()
    assert (empty["content"], empty["appended"]) == ("Once upon a time", "")
    assert empty["message_id"] == reply["id"]
    await say(http, conversation, "And then?")
    assert "Once upon a time\n" in prompt(world)


async def test_chosen_or_edited_reply_continues_and_imported_one_does_not(
    database: Database,
) -> None:
    _, http, conversation = await talking(
        database, Script(("Old",)), Script(("New",)), Script((" end.",))
    )
    path = f"/conversations/{conversation}"
    await say(http, conversation, "Hello")
    await http.post(f"{path}/regenerate")
    (_, old, new) = await messages(http, conversation)
    await http.post(f"{path}/choice", json={"message_id": old["id"]})
    await http.patch(f"{path}/messages/{old['id']}", json={"content": "Very old"})
    reply = (await http.post(f"{path}/continue")).json()
    assert (reply["message_id"], reply["content"]) == (old["id"], "Very old end.")
    (_, old, new) = await messages(http, conversation)
    assert (old["content"], new["content"]) == ("Very old end.", "New")
    opened = (await begin(http, history=HISTORY)).json()["conversation_id"]
    imported = await http.post(f"/conversations/{opened}/continue")
    assert imported.status_code == 409
