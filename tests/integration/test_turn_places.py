"""Turns wait for a place at their model in a fair queue, and several gateways share the places of a replica."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.errors import Overloaded
from guanaco.submissions import GenerationParams
from guanaco_server.chat.gateway.places.places import HELD_S, TurnPlace
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.chat.tables import GatewayPlacesRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.memory import Script
from tests.fixtures.world import BOT, World, eventually

MODEL, SIBLING = "acme-tiny_v1", "acme-tiny_v2"


class Gateway(World):
    """One gateway process of several on one database, whose model was measured to answer ``capacity`` at once."""

    async def publish_measured(self, capacity: int, params: GenerationParams | None = None) -> None:
        await self.publish(await self.account(Role.DEVELOPER, "ada"), MODEL, params=params)
        await self.deployments.wish(Deployment(MODEL, 1, "a" * 64, 1_088))
        await self.deployments.mark_ready(MODEL, f"memory://{MODEL}")
        await self.deployments.note(MODEL, capacity=capacity)
        await self.routing.refresh()

    async def beside(self, **changes: Any) -> Gateway:
        other = Gateway(self.database, **changes)
        other.clock.at = self.clock.at
        other.deployments.note_replicas(MODEL, (f"memory://{MODEL}",))
        await other.routing.refresh()
        return other

    async def share_engine(self, *submissions: str) -> None:
        """Publish further submissions of the same artifact, which share the engine."""
        ada = await self.account(Role.DEVELOPER, "ada")
        for submission_id in submissions:
            await self.publish(ada, submission_id)
            await self.deployments.wish(Deployment(submission_id, 1, "a" * 64, 1_088))
            await self.deployments.mark_ready(submission_id, f"memory://{MODEL}")
        await self.routing.refresh()

    def ask(
        self, asker: str = "app/user", model: str = MODEL, candidates: int = 1
    ) -> asyncio.Task[TurnPlace]:
        """Take the places for a turn of this app's user."""
        return asyncio.create_task(self.places.take(model, Asker(*asker.split("/")), candidates))

    async def are_taken(self, own: int, of_sibling: int) -> None:
        async def are_there() -> bool:
            return (self.places.in_flight(MODEL), self.places.in_flight(SIBLING)) == (
                own,
                of_sibling,
            )

        await eventually(are_there)

    async def is_waiting(self, count: int) -> None:
        async def are_there() -> bool:
            return self.places.waiting(MODEL) == count

        await eventually(are_there)


async def measured(database: Database, capacity: int, *scripts: Script, **changes: Any) -> Gateway:
    gateway = Gateway(database, *scripts, **changes)
    await gateway.publish_measured(capacity)
    return gateway


def done(turns: list[asyncio.Task[TurnPlace]]) -> int:
    return sum(turn.done() for turn in turns)


async def agree(*gateways: Gateway) -> None:
    """Have them agree as their loops would within a second or two."""
    for _ in range(3):
        for gateway in gateways:
            await asyncio.sleep(0)  # what was asked for, or has its place, goes on
            await gateway.places.share()
            await asyncio.sleep(0)


@pytest.mark.both_databases
async def test_two_gateways_share_the_capacity_of_a_replica(database: Database) -> None:
    first = await measured(database, 8)
    second = await first.beside()
    turns = [[gateway.ask() for _ in range(10)] for gateway in (first, second)]
    await agree(first, second)
    assert done(turns[0]) + done(turns[1]) == 8, "never more than the capacity"
    for _ in range(8):  # as turns end, each comes to its share
        for gateway, asked in ((first, turns[0]), (second, turns[1])):
            if gateway.places.in_flight(MODEL) > 4:
                (await next(turn for turn in asked if turn.done())).__exit__()
                asked.remove(next(turn for turn in asked if turn.done()))
            await agree(first, second)
            held = [gateway.places.in_flight(MODEL) for gateway in (first, second)]
            assert sum(held) <= 8
    assert held == [4, 4]
    for turn in turns[0] + turns[1]:
        turn.cancel()


@pytest.mark.both_databases
async def test_a_gateway_that_is_killed_leaves_no_place_held(database: Database) -> None:
    killed = await measured(database, 8)
    other = await killed.beside()
    for _ in range(8):
        await killed.ask()
    turns = [other.ask() for _ in range(8)]
    await agree(other)
    assert done(turns) == 0
    other.clock.advance(HELD_S + 1)
    await agree(other)
    assert done(turns) == 8


async def test_a_gateway_that_stops_gives_its_places_back_at_once(database: Database) -> None:
    stopped = await measured(database, 8)
    other = await stopped.beside()
    for _ in range(8):
        await stopped.ask()
    await stopped.places.stop()
    assert len(await asyncio.gather(*(other.ask() for _ in range(8)))) == 8


async def test_turn_that_waits_too_long_is_refused_with_retry_time(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    world = await measured(database, 1, Script(go_on=go_on), turn_wait_s=1.0)
    http = await world.http(Role.BACKEND, "app")
    conversations = [await world.open(http, f"user-{number}") for number in range(2)]
    first = asyncio.create_task(say(http, conversations[0]))
    await eventually(lambda: has_begun(world))
    refused = await say(http, conversations[1])
    assert (refused.status_code, refused.json()["error"]) == (503, "overloaded")
    assert refused.json()["detail"] == (
        "More messages wait for this model than it can answer within 1 s."
    )
    assert int(refused.headers["Retry-After"]) >= 1
    go_on.set()
    assert (await first).status_code == 200
    assert (await say(http, conversations[1])).status_code == 200, "the message can be sent again"


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(database: Database) -> None:
    go_on = asyncio.Event()
    world = await measured(database, 1, Script(go_on=go_on))
    http = await world.http(Role.BACKEND, "app")
    conversations = [await world.open(http, f"user-{number}") for number in range(3)]
    first = asyncio.create_task(say(http, conversations[0]))
    await eventually(lambda: has_begun(world))
    leaving = asyncio.create_task(say(http, conversations[1]))
    await world.is_waiting(1)
    staying = asyncio.create_task(say(http, conversations[2]))
    await world.is_waiting(2)
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    await world.is_waiting(1)
    go_on.set()
    assert [(await first).status_code, (await staying).status_code] == [200, 200]
    assert (world.places.waiting(MODEL), world.places.in_flight(MODEL)) == (0, 0)
    assert len(world.model_server.generations) == 2, (
        "the model was never asked for the one who left"
    )
    assert (await say(http, conversations[1])).status_code == 200, "nor is the conversation stuck"


async def test_an_app_that_floods_a_model_waits_for_itself(database: Database) -> None:
    world = await measured(database, 2)
    under_way = [await world.ask("loud/a"), await world.ask("loud/a")]
    flood = [world.ask(f"loud/{number}") for number in range(200)]
    await eventually(lambda: some_refused(flood))
    quiet = world.ask("quiet/a")
    await asyncio.sleep(0)
    under_way[0].__exit__()
    await quiet
    refused = [turn for turn in flood if turn.done() and isinstance(turn.exception(), Overloaded)]
    assert len(refused) >= 200 - 2 * 16
    for turn in flood:
        turn.cancel()


async def test_a_flooded_submission_leaves_its_sibling_its_share(database: Database) -> None:
    """Both are on one engine of eight places; the flood comes first, from many apps."""
    world = await measured(database, 8)
    await world.share_engine(SIBLING)
    under_way = [await world.ask(f"app-{number}/a") for number in range(8)]
    flood = [world.ask(f"app-{number}/a") for number in range(200)]
    await eventually(lambda: some_refused(flood))
    quiet = [world.ask("app/a", SIBLING) for _ in range(8)]
    await asyncio.sleep(0)
    for ended in range(4):
        under_way[ended].__exit__()
        await asyncio.sleep(0)
        assert done(quiet) == ended + 1, "each place that gets free is theirs until they have half"
    under_way[4].__exit__()
    await asyncio.sleep(0)
    assert (world.places.in_flight(MODEL), world.places.in_flight(SIBLING)) == (4, 4)
    assert not any(turn.done() and turn.exception() for turn in quiet), "none was refused"
    for turn in flood + quiet:
        turn.cancel()


async def test_what_a_submission_does_not_use_its_sibling_may(database: Database) -> None:
    world = await measured(database, 8)
    await world.share_engine(SIBLING)
    assert len(await asyncio.gather(*(world.ask() for _ in range(8)))) == 8
    assert not world.places.crowded()


async def test_a_reply_takes_a_place_for_each_candidate(database: Database) -> None:
    """Both submissions are on one engine of eight places; one has the best of four sent."""
    go_on = asyncio.Event()
    world = Gateway(database, Script(go_on=go_on))
    await world.publish_measured(8, GenerationParams(best_of=4))
    await world.share_engine(SIBLING)
    admin = await world.http(Role.ADMIN, "root")
    opened = await admin.post(
        "/conversations",
        json={"user_id": "u", "bot": BOT.model_dump(), "consent": True, "model": MODEL},
    )
    reply = asyncio.create_task(say(admin, opened.json()["conversation_id"]))
    await world.are_taken(4, 0)
    first, second = (world.ask(candidates=4) for _ in range(2))
    quiet = [world.ask("app/a", SIBLING) for _ in range(8)]
    await world.are_taken(8, 0)
    (await first).__exit__()
    await world.are_taken(4, 4)
    assert not second.done(), "the places that get free are the sibling's, until it has half"
    go_on.set()
    assert (await reply).status_code == 200
    await second
    await world.are_taken(4, 4)
    owners = await world.submissions.catalog.owners()
    assert (owners[MODEL].candidates, owners[SIBLING].candidates) == (4, 1)
    for turn in quiet:
        turn.cancel()


async def test_a_reply_of_more_candidates_than_places_takes_all(database: Database) -> None:
    world = await measured(database, 8)
    assert (await world.ask(candidates=16)).count == 8
    other = await world.beside()
    light = [other.ask() for _ in range(20)]
    waits = world.ask(candidates=16)
    await agree(other, world)
    assert not waits.done(), "the first one is under way"
    for turn in (*light, waits):
        turn.cancel()


async def test_a_reply_takes_no_more_than_its_gateways_part(
    database: Database,
) -> None:
    first = await measured(database, 8)
    second = await first.beside()
    many = first.ask(candidates=8)
    light = [second.ask() for _ in range(8)]
    await agree(second, first)
    for _ in range(8):
        for turn in [turn for turn in light if turn.done()][:1]:
            turn.result().__exit__()
            light.remove(turn)
        await agree(second, first)
        if many.done():
            break
        light.append(second.ask())
    assert (await many).count == first.places.in_flight(MODEL) < 8
    assert first.places.in_flight(MODEL) + second.places.in_flight(MODEL) <= 8
    for turn in light:
        turn.cancel()


@pytest.mark.both_databases
async def test_gateways_share_an_engine_by_submission(database: Database) -> None:
    """One submission floods one gateway, its sibling is asked at the other."""
    first = await measured(database, 8)
    await first.share_engine(SIBLING)
    second = await first.beside()
    await second.deployments.learn_endpoints()
    flood = [first.ask(f"app-{number}/a") for number in range(60)]
    await agree(first, second)
    assert first.places.in_flight(MODEL) == 8
    quiet = [second.ask("app/a", SIBLING) for _ in range(8)]
    for _ in range(8):  # as turns of the flood end, the sibling comes to its half
        ended = next(turn for turn in flood if turn.done())
        if first.places.in_flight(MODEL) > 4:
            ended.result().__exit__()
            flood.remove(ended)
        await agree(first, second)
        assert first.places.in_flight(MODEL) + second.places.in_flight(SIBLING) <= 8
    assert (first.places.in_flight(MODEL), second.places.in_flight(SIBLING)) == (4, 4)
    for turn in flood + quiet:
        turn.cancel()


async def test_places_held_by_an_older_gateway_for_a_sibling_count(
    database: Database,
) -> None:
    world = await measured(database, 8)
    await world.share_engine(SIBLING)
    until = world.clock.now() + timedelta(seconds=HELD_S)
    async with database.write() as session:
        session.add(
            GatewayPlacesRow(
                submission_id=SIBLING, gateway="old", held=6, wanted=6, apps=None, held_until=until
            )
        )
    turns = [world.ask() for _ in range(8)]
    await agree(world)
    assert done(turns) == 2
    for turn in turns:
        turn.cancel()


async def test_what_was_never_measured_has_places_of_each_process_alone(database: Database) -> None:
    world = Gateway(database, replica_max_streams=3, turn_wait_s=1.0)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), MODEL)
    for _ in range(3):
        await world.ask()
    with pytest.raises(Overloaded):
        await world.ask()


@pytest.mark.both_databases
async def test_more_replicas_are_more_places_for_those_who_wait(database: Database) -> None:
    world = await measured(database, 2)
    turns = [world.ask() for _ in range(6)]
    await agree(world)
    assert done(turns) == 2
    await world.deployments.note(MODEL, applied_replicas=3)
    await world.routing.refresh()
    world.clock.at += timedelta(seconds=1)
    await agree(world)
    await asyncio.gather(*turns)


async def say(http: httpx.AsyncClient, conversation: str) -> httpx.Response:
    return await http.post(f"/conversations/{conversation}/messages", json={"content": "Hi"})


async def has_begun(world: World) -> bool:
    return bool(world.model_server.generations)


async def some_refused(turns: list[asyncio.Task[TurnPlace]]) -> bool:
    return any(turn.done() for turn in turns)
