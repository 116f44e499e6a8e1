"""A user is erased: no table, file, export or memory holds the user's id, name or words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text

from guanaco.accounts import Role
from guanaco.feedback import ErasureRequest
from guanaco_server.chat.conversations.erasure_watch import ErasureWatch
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import complete_metadata
from guanaco_server.feedback.erasures.service import ErasedUser
from tests.fixtures.world import BOT, World

CANARY = "Quetzalcoatlus"
PATH = "/submissions/acme-tiny_v1/feedback"


async def everything(database: Database) -> str:
    """Every value of every table, as text."""
    found = []
    async with database.read() as session:
        for table in complete_metadata().sorted_tables:
            found += [repr(tuple(row)) for row in await session.execute(select(table))]
    return "\n".join(found)


async def bytes_of(database: Database) -> bytes:
    """SQLite's file with its log; nothing for PostgreSQL, which vacuums by itself."""
    path = database.engine.url.database
    if database.engine.dialect.name != "sqlite" or path is None:
        return b""
    return await asyncio.to_thread(_contents, path) + await asyncio.to_thread(
        _contents, f"{path}-wal"
    )


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except FileNotFoundError:
        return b""


async def talk(http: httpx.AsyncClient, user: str, words: str) -> str:
    body = {
        "user_id": user,
        "user_name": words,
        "consent": True,
        "bot": BOT.model_dump() | {"memory": f"knows {words}"},
    }
    opened: str = (await http.post("/conversations", json=body)).json()["conversation_id"]
    await http.post(f"/conversations/{opened}/messages", json={"content": f"I am {words}"})
    rating = {"thumbs_up": True, "text": f"said {words}"}
    assert (await http.post(f"/conversations/{opened}/feedback", json=rating)).status_code == 201
    return opened


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    return world


@pytest.mark.both_databases
async def test_no_table_or_export_holds_an_erased_user(world: World) -> None:
    backend, admin = await world.http(Role.BACKEND, "app"), await world.http(Role.ADMIN, "root")
    developer = await world.http(Role.DEVELOPER, "ada")
    kept = await talk(backend, "bob", "Bobolink")
    erased = [await talk(backend, f"id-{CANARY}", CANARY) for _ in range(2)]
    await world.copies.make()
    assert CANARY in await everything(world.database)
    heard: list[str] = []
    elsewhere = ErasureWatch(world.database)
    elsewhere.on_erased(heard.extend)
    for listening in (elsewhere, world.conversations.erasure_watch):
        await listening.look()

    read = (await developer.get(f"{PATH}")).json()["items"]
    (known_as,) = {one["user"] for one in read if one["conversation_id"] in erased}
    answer = await admin.post("/users/erase", json={"user_id": f"id-{CANARY}"})

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["conversations"], found["messages"], found["ratings"]) == (2, 4, 2)
    assert CANARY not in await everything(world.database)
    assert CANARY.encode() not in await bytes_of(world.database)
    for form in ("jsonl", "csv"):
        file = await developer.get(f"{PATH}/export", params={"format": form})
        assert CANARY not in file.text
        assert kept in file.text
    assert (await backend.get(f"/conversations/{erased[0]}")).status_code == 404
    await elsewhere.look()
    assert sorted(heard) == sorted(erased)
    await world.count()
    metrics = (await developer.get("/submissions/acme-tiny_v1/metrics")).json()
    assert (metrics["thumbs_up"], metrics["feedback_count"]) == (1, 1)
    assert found["known_as"] == {"ada": known_as}
    (noted,) = (await world.audit.list(10)).items
    assert (noted.account, noted.action, noted.subject) == ("root", "erase user", found["user"])
    body = {"user_id": f"id-{CANARY}", "account": "app"}
    again = (await admin.post("/users/erase", json=body)).json()
    assert (again["conversations"], again["user"]) == (0, found["user"])


async def test_other_rooms_erase_in_the_same_transaction(world: World) -> None:
    backend = await world.http(Role.BACKEND)
    conversation = await talk(backend, "alice", "Alice")
    seen: list[ErasedUser] = []

    async def note(session: Any, erased: ErasedUser) -> None:
        assert CANARY not in str(await session.scalar(text("SELECT count(*) FROM feedback")))
        seen.append(erased)

    async def fail(_session: Any, _erased: ErasedUser) -> None:
        raise RuntimeError("no")

    world.erasures.on_erase(note)
    admin = await world.account(Role.ADMIN, "root")
    world.erasures.on_erase(fail)
    with pytest.raises(RuntimeError):
        await world.erasures.erase(admin, ErasureRequest(user_id="alice"))
    assert [(one.user_id, one.conversation_ids) for one in seen] == [("alice", (conversation,))]
    assert len(seen[0].feedback_ids) == len(seen[0].account_ids) == 1
    assert (await backend.get(f"/conversations/{conversation}")).status_code == 200


async def test_an_id_that_several_backends_have_needs_the_backends_name(world: World) -> None:
    one, two = await world.http(Role.BACKEND, "one"), await world.http(Role.BACKEND, "two")
    admin = await world.http(Role.ADMIN)
    await talk(one, "17", "One")
    kept = await talk(two, "17", "Two")
    both = await admin.post("/users/erase", json={"user_id": "17"})
    assert (both.status_code, both.json()["error"]) == (409, "ambiguous_user")
    wrong = await admin.post("/users/erase", json={"user_id": "17", "account": "three"})
    assert (wrong.status_code, wrong.json()["error"]) == (404, "account_not_found")
    named = await admin.post("/users/erase", json={"user_id": "17", "account": "one"})
    assert named.json()["conversations"] == 1
    assert (await two.get(f"/conversations/{kept}")).status_code == 200


async def test_a_developer_erases_nobody(world: World) -> None:
    http = await world.http(Role.DEVELOPER, "a-developer")
    assert (await http.post("/users/erase", json={"user_id": "17"})).status_code == 403


@pytest.mark.both_databases
async def test_copies_made_during_an_erasure_do_not_survive_it(world: World) -> None:
    backend = await world.http(Role.BACKEND)
    admin = await world.http(Role.ADMIN)
    users = [f"u{number}" for number in range(6)]
    for user in users:
        await talk(backend, user, CANARY)

    async def erase(user: str) -> int:
        return (await admin.post("/users/erase", json={"user_id": user})).status_code

    outcomes: Sequence[Any] = await asyncio.gather(
        *(world.copies.make(2) for _ in range(3)), *(erase(user) for user in users)
    )
    assert outcomes[3:] == [200] * 6
    await world.copies.make()
    assert CANARY not in await everything(world.database)
