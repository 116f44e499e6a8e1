"""A chat page's user is erased by an admin: no row of any table leads back to them; on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.chat import ConversationRequest
from guanaco_server.chat.conversations.service import READ
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import complete_metadata
from guanaco_server.feedback.service import READ_RAW
from guanaco_server.web.access.guards import CHAT_COOKIE
from guanaco_server.web.access.viewer import hash_of
from guanaco_server.web.chat.beta_chat import USER_CHARS
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import agreed, chatting, send, signed_in

FOR_A_DAY = "erased_conversations"  # so that every process forgets them: docs/privacy.md
EXPERIMENT = {
    "name": "warmth",
    "variants": [{"name": "plain"}, {"name": "warm", "params": {"temperature": 1.5}}],
}


@pytest.fixture
async def world(database: Database) -> WebWorld:
    world = WebWorld(database)
    await world.publish(await world.developer("ada"))
    return world


async def holders(database: Database, *needles: str) -> set[str]:
    """The tables of which a row holds one of them."""
    found = set()
    async with database.read() as session:
        for table in complete_metadata().sorted_tables:
            rows = "\n".join(repr(tuple(row)) for row in await session.execute(select(table)))
            if any(needle in rows for needle in needles):
                found.add(table.name)
    return found


async def talk_and_rate(world: WebWorld) -> tuple[str, str, str]:
    """The visitor's cookie, the hash that begins their user id, and their conversation."""
    client, path = await chatting(world)
    await send(client, f"{path}/messages", {"content": "Ahoy"}, path)
    assert (await send(client, f"{path}/rating", {"thumb": "up"}, path)).status_code == 303
    cookie = client.cookies[CHAT_COOKIE]
    return cookie, hash_of(cookie)[:USER_CHARS], path.removeprefix("/chat/")


async def test_no_row_of_any_table_leads_to_an_erased_visitor(world: WebWorld) -> None:
    api = await world.http(Role.ADMIN, "root")
    assert (await api.post("/experiments", json=EXPERIMENT)).status_code == 201
    started = await api.post("/experiments/warmth/start")
    assert started.status_code == 200, started.text
    cookie, her, conversation = await talk_and_rate(world)
    other_cookie, other, kept = await talk_and_rate(world)
    await world.copies.make()
    await world.count()
    page = (await api.get("/submissions/acme-tiny_v1/feedback")).json()
    rating = next(one["id"] for one in page["items"] if one["conversation_id"] == conversation)
    assert (await api.get(f"/conversations/{conversation}")).status_code == 200
    assert (await api.get(f"/feedback/{rating}/raw")).status_code == 200
    theirs = await holders(world.database, her, conversation, rating)
    assert {"web_visitors", "web_chats", "conversations", "feedback", "audit"} <= theirs
    assert "experiment_exposures" in theirs

    root = await signed_in(world, Role.ADMIN, "root")
    fields = {"user_id": f"web-{her}", "again": f"web-{her}"}
    answer = await send(root, "/admin/users/erase", fields)

    assert "Erased: 1 conversation, 2 messages, 1 rating." in answer.text
    await world.count()
    assert await holders(world.database, her, conversation, rating) == {FOR_A_DAY}
    noted = (await world.audit.list(100)).items
    assert {one.action for one in noted} == {"erase user", READ, READ_RAW}
    assert len({one.subject for one in noted}) == 1, "all of it was done to one pseudonym"
    client = await agreed(world)
    client.cookies.set(CHAT_COOKIE, cookie, path="/chat")
    assert "I agree" in (await client.get("/chat")).text
    client.cookies.set(CHAT_COOKIE, other_cookie, path="/chat")
    assert kept in (await client.get("/chat")).text
    assert "web_visitors" in await holders(world.database, other)


async def test_a_visitor_who_never_talked_is_erased_too(world: WebWorld) -> None:
    client = await agreed(world)
    her = hash_of(client.cookies[CHAT_COOKIE])[:USER_CHARS]
    admin = await world.http(Role.ADMIN, "root")
    for account, left in (("app", {"web_visitors"}), (None, set[str]())):
        await world.key(Role.BACKEND, "app")
        request = {"user_id": f"web-{her}", "account": account}
        assert (await admin.post("/users/erase", json=request)).status_code == 200
        assert await holders(world.database, her) == left


async def test_conversation_opened_during_an_erasure_does_not_survive_it(
    world: WebWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await agreed(world)
    her = hash_of(client.cookies[CHAT_COOKIE])[:USER_CHARS]
    admin = await world.http(Role.ADMIN, "root")
    open_conversation = world.conversations.open

    async def erase_first(account: object, request: ConversationRequest) -> object:
        assert (await admin.post("/users/erase", json={"user_id": f"web-{her}"})).status_code == 200
        return await open_conversation(account, request)  # type: ignore[arg-type]

    monkeypatch.setattr(world.conversations, "open", erase_first)
    opened = await send(client, "/chat/open", {"bot": "marlowe"}, "/chat")
    assert opened.status_code == 403
    assert await holders(world.database, her) == set()
