"""Model servers and clients that misbehave, on real sockets, through the whole gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.vllm import MAX_ANSWER_BYTES
from tests.fixtures.clocks import after
from tests.fixtures.rogue_server import END, HEAD, Behave, chunk, event, rogue, well
from tests.fixtures.rogue_world import Patient, said, talking
from tests.fixtures.world import TEST_SETTINGS, World

FIRST_TOKEN_S = TEST_SETTINGS["first_token_timeout_s"]


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01garbage\r\n\r\n")


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(b"data: {not json}\n\n") + b"0\r\n\r\n")


async def half_a_character(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(event("ä").replace("ä".encode(), b"\xc3")) + END)


async def early_close(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)


async def endless_line(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(b"data: "))
    while not writer.is_closing():
        writer.write(chunk(b"x" * 65_536))
        await asyncio.sleep(0)


@pytest.mark.parametrize("bad", [garbage, nonsense, half_a_character, early_close, endless_line])
async def test_server_failing_before_its_first_token_is_replaced_unnoticed(
    database: Database, bad: Behave
) -> None:
    async with (
        rogue(bad) as one,
        rogue(well) as two,
        talking(database, one, two) as (http, path, _),
    ):
        for _ in range(2):
            answer = await http.post(f"{path}/messages", json={"content": "Hello"})
            assert answer.json()["content"] == "All well."
        assert await said(http, path) == [("user", "Hello"), ("bot", "All well.")] * 2


async def test_a_server_that_stalls_is_given_up_at_the_deadline(database: Database) -> None:
    is_asked = asyncio.Event()

    async def silence(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        is_asked.set()
        while not writer.is_closing():
            await asyncio.sleep(0.01)

    async with rogue(silence, well) as endpoint, talking(database, endpoint) as (http, path, _):
        asking = asyncio.create_task(http.post(f"{path}/messages", json={"content": "Hello"}))
        await is_asked.wait()
        late = await after(FIRST_TOKEN_S, asking)
        assert (late.status_code, late.json()["error"]) == (504, "model_timed_out")
        again = await http.post(f"{path}/regenerate")
        assert again.json()["content"] == "All well."


async def test_endless_stream_ends_in_an_error_event(database: Database) -> None:
    has_begun = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event("Once")))
        await has_begun.wait()
        while not writer.is_closing():
            writer.write(chunk(event("more and ")))
            await asyncio.sleep(0)

    async with rogue(endless, well) as endpoint, talking(database, endpoint) as (http, path, _):
        asked = {"content": "Hello", "stream": True}
        read = ""
        async with http.stream("POST", f"{path}/messages", json=asked) as broken:
            async for text in broken.aiter_text():
                read += text
                has_begun.set()
        *_, last = read.strip().split("\n\n")
        assert last.startswith("event: error")
        assert json.loads(last.partition("data: ")[2])["error"] == "model_unavailable"
        assert (await http.post(f"{path}/regenerate")).json()["content"] == "All well."


async def test_endless_candidates_are_read_up_to_the_answer_limit(
    database: Database,
) -> None:
    sent = 0

    async def endless_answer(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(HEAD)
        while True:  # until the gateway hangs up
            writer.write(chunk(b"x" * 1_000_000))
            await writer.drain()
            sent += 1_000_000

    several: dict[str, Any] = {"best_of": 2, "temperature": 1.0}
    async with (
        rogue(endless_answer) as endpoint,
        talking(database, endpoint, make=Patient, **several) as (http, path, _),
    ):
        failed = await http.post(f"{path}/messages", json={"content": "Hello"})
        assert (failed.status_code, failed.json()["error"]) == (503, "model_unavailable")
        assert sent < 10 * MAX_ANSWER_BYTES, "the limit, and what the system holds for both sides"
        assert await said(http, path) == [("user", "Hello")]


class Roomy(Patient):
    changes = {**Patient.changes, "replica_max_streams": 220}


@pytest.mark.slow
async def test_candidates_are_chosen_for_as_many_replies_as_users_ask(
    database: Database,
) -> None:
    asked, all_asked = 0, asyncio.Event()
    choice = {"text": "All well.", "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    said = json.dumps({"choices": [choice, choice], "usage": usage}).encode()

    async def waits_for_all(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked == 110:
            all_asked.set()
        await all_asked.wait()
        writer.write(HEAD + chunk(said) + b"0\r\n\r\n")

    several: dict[str, Any] = {"best_of": 2, "temperature": 1.0}
    async with (
        rogue(waits_for_all) as endpoint,
        talking(database, endpoint, make=Roomy, **several) as (http, _, world),
    ):
        users = await asyncio.gather(*(world.open(http, f"user-{n}") for n in range(110)))
        answers = await asyncio.gather(
            *(
                http.post(f"/conversations/{user}/messages", json={"content": "Hi"})
                for user in users
            )
        )
        assert {answer.status_code for answer in answers} == {200}


class Lively(World):
    heartbeat_s = 0.2


async def test_a_quiet_stream_gets_heartbeats(database: Database) -> None:
    heard = asyncio.Event()

    async def slow(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event("All")))
        await heard.wait()
        writer.write(chunk(event(" well.", "stop")) + END)

    async with rogue(slow) as endpoint, talking(database, endpoint, make=Lively) as (http, path, _):
        body = {"content": "Hello", "stream": True}
        async with http.stream("POST", f"{path}/messages", json=body) as answer:
            lines = []
            async for line in answer.aiter_lines():
                lines.append(line)
                if line == ": still here":
                    heard.set()
        assert "event: done" in lines


async def test_a_message_during_a_reply_is_refused(database: Database) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def waiting(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event("All")))
        begun.set()
        await go_on.wait()
        writer.write(chunk(event(" well.", "stop")) + END)

    async with rogue(waiting) as endpoint, talking(database, endpoint) as (http, path, _):
        first = asyncio.create_task(http.post(f"{path}/messages", json={"content": "Hello"}))
        await begun.wait()
        second = await http.post(f"{path}/messages", json={"content": "Hello?"})
        assert (second.status_code, second.json()["error"]) == (409, "conversation_busy")
        assert second.headers["Retry-After"] == "2"
        go_on.set()
        assert (await first).json()["content"] == "All well."


async def test_more_replies_than_the_servers_hold_are_refused_at_once(database: Database) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def waiting(writer: asyncio.StreamWriter) -> None:
        begun.set()
        await go_on.wait()
        await well(writer)

    async with rogue(waiting) as endpoint, talking(database, endpoint) as (http, path, world):
        world.replicas._max_streams = 1
        first = asyncio.create_task(http.post(f"{path}/messages", json={"content": "Hello"}))
        await begun.wait()
        other = await world.open(http)
        refused = await http.post(f"/conversations/{other}/messages", json={"content": "Hi"})
        assert (refused.status_code, refused.json()["error"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        go_on.set()
        assert (await first).status_code == 200


NO_MESSAGES: list[tuple[bytes, int, str]] = [
    (b'{"content": "' + b"x" * 1_000_000 + b'"}', 413, "262,144"),
    (b'{"content": "' + b"x" * 20_000 + b'"}', 422, "16384"),
    (b'{"content": "\\u0000"}', 422, "cannot be stored"),
    (b'{"content": "\\ud800"}', 422, ""),
    (b"[", 422, ""),
    (b'{"content": "Hi", "role": "admin"}', 422, "role"),
]


@pytest.mark.slow
async def test_impossible_message_is_refused_in_a_sentence(
    database: Database, subtests: pytest.Subtests
) -> None:
    async with rogue(well) as endpoint, talking(database, endpoint) as (http, path, _):
        for body, status, says in NO_MESSAGES:
            with subtests.test(body=body[:40]):
                refused = await http.post(f"{path}/messages", content=body)
                assert refused.status_code == status
                assert says in refused.json()["detail"]
                assert await said(http, path) == []
