"""Requests that carry an Idempotency-Key: answered once, and the same answer for a day, in every process."""

from __future__ import annotations

import asyncio
import os

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from guanaco.accounts import Role
from guanaco_server.accounts import queries as account_queries
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import ModelServerFault
from guanaco_server.idempotency.keeping import KeptAnswer
from guanaco_server.idempotency.service import IdempotencyService, KeyedRequest, RequestClaim
from tests.fixtures.talking import contents, parse, talking

KEY = {"Idempotency-Key": "11b2c3"}
HELLO = {"content": "Hello"}


@pytest.mark.both_databases
async def test_a_repeated_message_is_one_turn_also_after_a_restart(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("Hi", " you")))
    path = f"/conversations/{conversation}/messages"
    first = await http.post(path, json=HELLO, headers=KEY)
    assert first.status_code == 200, first.text
    world.restart()
    async with world.http_with(dict(http.headers)) as later:
        again = await later.post(path, json=HELLO, headers=KEY)
        assert (again.status_code, again.json()) == (200, first.json())
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["content-type"] == "application/json"
        assert len(await contents(later, conversation)) == 2
        other = await later.post(path, json={"content": "Else"}, headers=KEY)
        assert (other.status_code, other.json()["error"]) == (409, "idempotency_conflict")
        world.clock.advance(86_400)
        world.deployments.note_replicas("acme-tiny_v1", ("memory://acme-tiny_v1",))
        await world.routing.refresh()
        assert (await later.post(path, json={"content": "Else"}, headers=KEY)).status_code == 200
        assert len(await contents(later, conversation)) == 4


async def test_a_streamed_reply_is_given_again_event_by_event(database: Database) -> None:
    _, http, conversation = await talking(database, Script(("Hi", " you")))
    path, body = f"/conversations/{conversation}/messages", HELLO | {"stream": True}
    first = await http.post(path, json=body, headers=KEY)
    again = await http.post(path, json=body, headers=KEY)
    assert parse(again.text) == parse(first.text)
    assert parse(again.text)[-1][0] == "done"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(await contents(http, conversation)) == 2


async def test_what_failed_is_tried_again(database: Database) -> None:
    fault = ModelServerFault("gone")
    _, http, conversation = await talking(
        database, Script((), fault=fault), Script(("Hi",), fault=fault), Script(("Hi",))
    )
    path = f"/conversations/{conversation}/messages"
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 503
    broken = await http.post(path, json=HELLO | {"stream": True}, headers=KEY)
    assert parse(broken.text)[-1][0] == "error"
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200
    assert len(await contents(http, conversation)) == 2


@pytest.mark.both_databases
async def test_while_the_first_is_answered_a_repetition_gets_409(database: Database) -> None:
    go_on = asyncio.Event()
    world, http, conversation = await talking(database, Script(("Hi",), go_on=go_on))
    path = f"/conversations/{conversation}/messages"
    first = asyncio.create_task(http.post(path, json=HELLO, headers=KEY))
    while not world.model_server.generations:
        await asyncio.sleep(0.01)
    meanwhile = await http.post(path, json=HELLO, headers=KEY)
    assert (meanwhile.status_code, meanwhile.json()["error"]) == (409, "request_in_progress")
    go_on.set()
    assert (await first).status_code == 200
    assert (await http.post(path, json=HELLO, headers=KEY)).json() == (await first).json()


@pytest.mark.both_databases
async def test_a_request_whose_process_died_is_answered_after_its_lease(database: Database) -> None:
    world, http, conversation = await talking(database)
    path = f"/conversations/{conversation}/messages"
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200
    async with database.write() as session:
        await session.execute(text("UPDATE idempotent_requests SET answer = NULL, token = 'dead'"))
        await session.execute(
            text("UPDATE idempotent_requests SET claimed_until = :until"),
            {"until": str(world.clock.now())},
        )
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200


async def test_keys_belong_to_accounts_and_every_post_takes_them(database: Database) -> None:
    world, http, conversation = await talking(database)
    other = await world.http(Role.BACKEND, "other")
    body = {"user_id": "u", "bot": {"name": "Luna"}, "consent": True}
    opened = [
        (await app.post("/conversations", json=body, headers=KEY)).json()["conversation_id"]
        for app in (http, http, other)
    ]
    assert opened[0] == opened[1] != opened[2]
    await world.greet(http, conversation)
    rating = {"json": {"thumbs_up": True}, "headers": {"Idempotency-Key": "rating"}}
    rated = [await http.post(f"/conversations/{conversation}/feedback", **rating) for _ in "ab"]
    assert [one.status_code for one in rated] == [201, 201]
    assert rated[0].json() == rated[1].json()
    nobody = await http.post(
        "/conversations", json=body, headers=KEY | {"Authorization": "Bearer x"}
    )
    assert nobody.status_code == 401
    too_long = await http.post("/conversations", json=body, headers={"Idempotency-Key": "k" * 256})
    assert (too_long.status_code, too_long.json()["error"]) == (422, "invalid_input")


async def test_answers_are_unreadable_in_the_database_and_deleted_in_time(
    database: Database,
) -> None:
    world, http, conversation = await talking(database, Script(("A secret",)))
    path = f"/conversations/{conversation}/messages"
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200
    async with database.read() as session:
        rows = (await session.execute(text("SELECT * FROM idempotent_requests"))).all()
    assert rows
    assert "secret" not in str(rows)
    assert KEY["Idempotency-Key"] not in str(rows)
    service = world.platform.rooms.idempotency.service
    assert await service.expire() == 0
    world.clock.advance(86_401)
    assert (await service.expire(), await service.expire()) == (1, 0)


async def test_erasing_a_user_drops_the_answers_of_their_conversations(database: Database) -> None:
    world, http, conversation = await talking(database)
    path = f"/conversations/{conversation}/messages"
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200
    admin = await world.http(Role.ADMIN, "root")
    erased = await admin.post("/users/erase", json={"user_id": "user-1"})
    assert erased.status_code == 200, erased.text
    await world.conversations.erasure_watch.look()
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 404


async def test_requests_that_change_nothing_keep_no_answer(database: Database) -> None:
    world, _, _ = await talking(database)
    developer = await world.http(Role.DEVELOPER, "eve")
    trial = {
        "bot": {"name": "Luna"},
        "turns": [{"sender": "user", "content": "Hi"}],
        "formatter": {
            "kind": "file",
            "parts": [{"name": "c", "each": "turn", "content": "{{ message }}"}],
        },
    }
    for _ in "ab":
        rendered = await developer.post("/prompts/render", json=trial, headers=KEY)
        assert rendered.status_code == 200, rendered.text
        assert "idempotent-replayed" not in rendered.headers
    async with database.read() as session:
        rows = await session.scalar(text("SELECT count(*) FROM idempotent_requests"))
    assert rows == 0


@pytest.mark.both_databases
async def test_beyond_an_accounts_bytes_its_oldest_answers_go(database: Database) -> None:
    world, _, _ = await talking(database)
    limited = IdempotencyService(database, world.clock, b"secret", account_bytes=8 * 1024)
    stored = KeptAnswer(200, (), os.urandom(1024))

    async def answer(account: str, key: str) -> bool:
        """Return whether the answer was there."""
        world.clock.advance(1)
        begun = await limited.begin(KeyedRequest(account, key, b"POST"))
        if isinstance(begun, RequestClaim):
            await limited.finish(begun, stored)
        return isinstance(begun, KeptAnswer)

    await answer("bystander", "0")
    for number in range(20):
        assert not await answer("writer", str(number))
    assert await answer("bystander", "0")
    assert await answer("writer", "19")
    assert not await answer("writer", "0")
    async with database.read() as session:
        bytes_kept = await session.scalar(
            text("SELECT sum(length(answer)) FROM idempotent_requests WHERE account_id = 'writer'")
        )
    assert 2 * 1024 < int(bytes_kept) <= 10 * 1024


REFUSE_ANSWERS = {
    "sqlite": (
        "CREATE TRIGGER no_answer BEFORE UPDATE OF answer ON idempotent_requests"
        " WHEN NEW.answer IS NOT NULL BEGIN SELECT RAISE(ABORT, 'it dies here'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION no_answer() RETURNS trigger AS"
        " $$ BEGIN RAISE 'it dies here'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER no_answer BEFORE UPDATE OF answer ON idempotent_requests FOR EACH ROW"
        " WHEN (NEW.answer IS NOT NULL) EXECUTE FUNCTION no_answer()",
    ),
}
ACCEPT_ANSWERS = {
    "sqlite": "DROP TRIGGER no_answer",
    "postgresql": "DROP TRIGGER no_answer ON idempotent_requests",
}


@pytest.mark.both_databases
async def test_database_outage_at_key_lookup_has_our_error_form(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, http, conversation = await talking(database, Script(("Hi",)))
    path = f"/conversations/{conversation}/messages"

    async def away(_session: object, _key_id: str) -> None:
        raise OperationalError("SELECT 1", {}, OSError("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(account_queries, "key_by_id", away)
        world.restart()  # which forgets the keys that it has seen
        async with world.http_with(dict(http.headers)) as later:
            answer = await later.post(path, json=HELLO, headers=KEY)
    assert (answer.status_code, answer.json()["error"]) == (503, "database_unavailable")


async def said(http: httpx.AsyncClient, conversation: str) -> list[str]:
    return [content for _, content, _ in await contents(http, conversation)]


async def run_all(database: Database, *statements: str) -> None:
    async with database.write() as session:
        for statement in statements:
            await session.execute(text(statement))


@pytest.mark.both_databases
async def test_turn_and_answer_are_stored_together_or_not_at_all(database: Database) -> None:
    """A process that dies between them would leave a turn that a repetition takes again."""
    _, http, conversation = await talking(
        database, Script(("Hi",)), Script(("Hi", " again")), Script(("Ho",)), Script(("Ha",))
    )
    dialect = database.engine.dialect.name
    path = f"/conversations/{conversation}/messages"
    await run_all(database, *REFUSE_ANSWERS[dialect])
    for kind in ({}, {"stream": True}):
        failed = await http.post(path, json=HELLO | kind, headers=KEY)
        assert failed.status_code >= 500 or parse(failed.text)[-1][0] == "error"
    assert await said(http, conversation) == ["Hello"]
    await run_all(database, ACCEPT_ANSWERS[dialect])
    for _ in "ab":
        assert (await http.post(path, json=HELLO, headers=KEY)).json()["content"] == "Ho"
    assert await said(http, conversation) == ["Hello", "Ho"]


@pytest.mark.both_databases
async def test_a_request_that_another_process_took_over_stores_nothing(database: Database) -> None:
    """It was silent for longer than its lease; the other process carries the request out."""
    go_on = asyncio.Event()
    world, http, conversation = await talking(
        database, Script(("Hi",), go_on=go_on), Script(("Ho",))
    )
    path = f"/conversations/{conversation}/messages"
    slow = asyncio.create_task(http.post(path, json=HELLO, headers=KEY))
    while not world.model_server.generations:
        await asyncio.sleep(0.01)
    await run_all(database, "UPDATE idempotent_requests SET token = 'another'")
    go_on.set()
    assert (await slow).status_code == 409
    await run_all(database, "DELETE FROM idempotent_requests")
    assert (await http.post(path, json=HELLO, headers=KEY)).status_code == 200
    assert await said(http, conversation) == ["Hello", "Ho"]


async def test_what_is_opened_or_rated_is_stored_with_its_answer(database: Database) -> None:
    world, http, conversation = await talking(database)
    await world.greet(http, conversation)
    dialect = database.engine.dialect.name
    await run_all(database, *REFUSE_ANSWERS[dialect])
    requests = {
        "/conversations": {"user_id": "u", "bot": {"name": "Luna"}, "consent": True},
        f"/conversations/{conversation}/feedback": {"thumbs_up": True},
    }
    for path, body in requests.items():
        with pytest.raises(DBAPIError):  # which its server would answer with 500
            await http.post(path, json=body, headers={"Idempotency-Key": path})
    await run_all(database, ACCEPT_ANSWERS[dialect])
    for path, body in requests.items():
        answers = [
            await http.post(path, json=body, headers={"Idempotency-Key": path}) for _ in "ab"
        ]
        assert [one.status_code for one in answers] == [201, 201]
        assert answers[0].json() == answers[1].json()
    async with database.read() as session:
        assert len((await session.execute(text("SELECT id FROM conversations"))).all()) == 2
