"""A message whose server is gone: waited for, asked of the next one, or told; on both databases."""

from __future__ import annotations

import asyncio

import httpx

from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import RequestRefused
from guanaco_server.routing.replicas import rendezvous
from tests.fixtures.clocks import after
from tests.fixtures.talking import talking
from tests.fixtures.world import TEST_SETTINGS, World, eventually

HALF_S = TEST_SETTINGS["first_token_timeout_s"] / 2


class Patient(World):
    changes = {"failover_s": 30}


async def test_a_message_waits_for_a_server_that_is_started_again(database: Database) -> None:
    world, http, conversation = await talking(database, make=Patient)
    world.deployments.note_replicas("acme-tiny_v1", ())
    url = f"/conversations/{conversation}/messages"
    asked = asyncio.create_task(http.post(url, json={"content": "Are you there?"}))

    async def is_waiting() -> bool:
        return bool(await world.activity.open_streams())

    await eventually(is_waiting)
    world.deployments.note_replicas("acme-tiny_v1", ("memory://again",))
    assert (await asked).status_code == 200


async def test_unstarted_reply_is_asked_of_the_next_server(database: Database) -> None:
    world, http, conversation = await talking(database)
    submission_id = (await http.get(f"/conversations/{conversation}")).json()["submission_id"]
    world.deployments.note_replicas(submission_id, ("memory://one", "memory://two"))
    near, far = rendezvous(conversation, ["memory://one", "memory://two"])
    world.model_server.unhealthy.add(near)
    url = f"/conversations/{conversation}/messages"
    assert (await http.post(url, json={"content": "Hello"})).json()["content"] == (
        "Hello from memory."
    )
    assert world.deployments.take_suspects() == {submission_id}
    world.model_server.unhealthy.add(far)
    failed = await http.post(url, json={"content": "And now?"})
    assert (failed.status_code, failed.json()["error"]) == (503, "model_unavailable")


async def test_a_reply_that_has_begun_is_not_begun_again_elsewhere(database: Database) -> None:
    world, http, conversation = await talking(database, Script(("One",), fault="broke off"))
    submission_id = (await http.get(f"/conversations/{conversation}")).json()["submission_id"]
    world.deployments.note_replicas(submission_id, ("memory://near", "memory://far"))
    url = f"/conversations/{conversation}/messages"
    assert (await http.post(url, json={"content": "Hello"})).status_code == 503
    assert len(world.model_server.generations) == 1


async def patient(
    world: World, http: httpx.AsyncClient, conversation: str, silent_s: float = 0
) -> httpx.Response:
    """Say hello to a silent server, wait a while, and let half of the time for the first token pass."""
    asked = http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    answering = asyncio.create_task(asked)

    async def is_asked() -> bool:
        return bool(world.model_server.generations)

    await eventually(is_asked)
    await asyncio.sleep(silent_s)
    return await after(HALF_S, answering)


async def test_silent_server_is_left_for_the_next_within_the_deadline(
    database: Database,
) -> None:
    world, http, conversation = await talking(database)
    submission_id = (await http.get(f"/conversations/{conversation}")).json()["submission_id"]
    world.deployments.note_replicas(submission_id, ("memory://one", "memory://two"))
    near, far = rendezvous(conversation, ["memory://one", "memory://two"])
    world.model_server.silent.add(near)
    answer = await patient(world, http, conversation)
    assert answer.json()["content"] == "Hello from memory."
    assert world.replicas.of(near).faults == 1
    assert world.replicas.of(far).faults == 0


async def test_next_server_is_not_charged_for_the_first_ones_delay(database: Database) -> None:
    world, http, conversation = await talking(database)
    submission_id = (await http.get(f"/conversations/{conversation}")).json()["submission_id"]
    world.deployments.note_replicas(submission_id, ("memory://one", "memory://two"))
    near, far = rendezvous(conversation, ["memory://one", "memory://two"])
    world.model_server.silent.add(near)
    silent_s = 0.5
    answer = await patient(world, http, conversation, silent_s)
    waited_s = answer.json()["timings"]["ttft_ms"] / 1_000
    assert waited_s >= silent_s, "the user waited for both"
    assert world.replicas.of(far).ttft_s <= waited_s - silent_s


async def test_server_refusal_is_told_at_once_and_blames_nobody(
    database: Database,
) -> None:
    refusal = RequestRefused("it does not fit")
    world, http, conversation = await talking(database, Script((), fault=refusal))
    submission_id = (await http.get(f"/conversations/{conversation}")).json()["submission_id"]
    world.deployments.note_replicas(submission_id, ("memory://near", "memory://far"))
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert (answer.status_code, answer.json()["error"]) == (422, "model_refused")
    assert len(world.model_server.generations) == 1
    assert [world.replicas.of(name).faults for name in ("memory://near", "memory://far")] == [0, 0]
    assert not world.deployments.take_suspects()
