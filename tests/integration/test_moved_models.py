"""A turn whose model server was given another model meanwhile: it is asked again where its model is, and never answered by another.

The gateway is the product's, over HTTP; the cluster and the model servers are in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.chat.gateway.generation import MOVED_S
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from tests.integration.test_swaps import FIRST, KEYS, LLAMA, SECOND, Hot

TALKED_TO, OTHER = FIRST, SECOND
FIRST_TOKEN_S = 1.0


class Impatient(Hot):
    """A world whose deadline for the first token is shorter than what waking takes here."""

    changes = {**Hot.changes, "first_token_timeout_s": FIRST_TOKEN_S}


class Waiting(Hot):
    """A world whose turns wait for a server that is gone."""

    changes = {**Hot.changes, "failover_s": 20}


async def talk_of(world: Hot, folder: Path) -> tuple[httpx.AsyncClient, str, str]:
    """A conversation, whose submission is served; the other one sleeps. Return its client, its id, and the server's endpoint."""
    for key in KEYS.values():
        await world.make_artifact(folder, key, LLAMA)
    await world.serve_known(OTHER)
    await world.deployments.put_to_sleep(OTHER, world.clock.now())
    await world.cluster.delete(deployment_name(OTHER))
    await world.serve(TALKED_TO)
    http = await world.http(Role.BACKEND, "app")
    conversation = await world.open(http)
    return http, conversation, await world.leave(TALKED_TO)


async def take_over(world: Hot) -> None:
    """Put the conversation's submission to sleep, and give its server to the other one."""
    await world.deployments.put_to_sleep(TALKED_TO, world.clock.now())
    await world.deployments.wake(OTHER)
    for _ in range(3):
        await world.reconciler.reconcile()
    assert len(world.model_server.swaps) == 1


def forget_the_swap(world: Hot, endpoint: str) -> None:
    """Have the gateway believe what was so before the swap, as one does that has not heard of it yet."""
    world.deployments.note_replicas(TALKED_TO, (endpoint,), TALKED_TO, (KEYS[TALKED_TO], None))


async def while_reconciling(
    world: Hot, answer: Awaitable[httpx.Response], begin_s: float = 0
) -> httpx.Response:
    """Reconcile until the answer is there, beginning when the turn has met the wrong model, and after that time at the earliest."""
    asked = asyncio.ensure_future(answer)
    await asyncio.wait([asked], timeout=begin_s)
    while not asked.done() and not world.model_server.generations:
        await asyncio.sleep(0.01)
    while not asked.done():
        await world.reconciler.reconcile()
        await asyncio.sleep(0.01)
    return await asked


@pytest.mark.both_databases
async def test_a_turn_follows_its_model_that_sleeps(database: Database, tmp_path: Path) -> None:
    world = Hot(database)
    http, conversation, endpoint = await talk_of(world, tmp_path)
    await take_over(world)
    forget_the_swap(world, endpoint)
    sent = http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    answer = await while_reconciling(world, sent)
    assert answer.status_code == 200, answer.text
    refused, answered = (generation.model for generation in world.model_server.generations)
    assert refused == f"{TALKED_TO}#{KEYS[TALKED_TO]}"
    assert answered == f"{OTHER}#{KEYS[TALKED_TO]}", "the engines have changed names"
    assert world.deployments.replicas(TALKED_TO) not in ((), (endpoint,))
    assert world.deployments.replicas(OTHER) == (endpoint,), "which nobody took from it"


async def test_a_turn_follows_its_model_that_is_awake_elsewhere(
    database: Database, tmp_path: Path
) -> None:
    """Another process has the reconciler, so this one's gateway reads the endpoints from the table."""
    world = Hot(database)
    http, conversation, endpoint = await talk_of(world, tmp_path)
    await take_over(world)
    await world.deployments.wake(TALKED_TO)
    for _ in range(3):
        await world.reconciler.reconcile()
    await world.deployments.mark_ready(TALKED_TO, "memory://elsewhere")
    forget_the_swap(world, endpoint)
    world.deployments.note_reconciler(False)
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert answer.status_code == 200, answer.text
    assert len(world.model_server.generations) == 2
    assert world.deployments.replicas(TALKED_TO) == ("memory://elsewhere",)


@pytest.mark.slow
async def test_waking_takes_nothing_of_the_time_for_the_first_token(
    database: Database, tmp_path: Path
) -> None:
    world = Impatient(database)
    http, conversation, endpoint = await talk_of(world, tmp_path)
    await take_over(world)
    forget_the_swap(world, endpoint)
    sent = http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    answer = await while_reconciling(world, sent, begin_s=1.5 * FIRST_TOKEN_S)
    assert answer.status_code == 200, answer.text


async def test_a_model_whose_server_ended_in_its_sleep_is_woken(
    database: Database, tmp_path: Path
) -> None:
    world = Waiting(database)
    http, conversation, endpoint = await talk_of(world, tmp_path)
    await world.deployments.put_to_sleep(TALKED_TO, world.clock.now())
    await world.cluster.delete(deployment_name(TALKED_TO))
    world.model_server.unhealthy.add(endpoint)
    forget_the_swap(world, endpoint)
    sent = http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    answer = await while_reconciling(world, sent, begin_s=0.2)
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
async def test_a_model_that_is_nowhere_is_given_up(database: Database, tmp_path: Path) -> None:
    """The table says that it is awake where another model is, and nobody mends that."""
    world = Hot(database)
    http, conversation, endpoint = await talk_of(world, tmp_path)
    world.model_server.artifacts[endpoint] = KEYS[OTHER]
    began = asyncio.get_running_loop().time()
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert (answer.status_code, answer.json()["error"]) == (503, "model_unavailable")
    assert asyncio.get_running_loop().time() - began < MOVED_S + 10
    assert world.deployments.take_suspects() == {TALKED_TO}, "the reconciler looks at once"
