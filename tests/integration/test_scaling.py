"""Sleeping and waking, room for those who wait, replicas by load."""

from __future__ import annotations

import asyncio
from datetime import datetime

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.errors import ModelWaking
from guanaco.submissions import GenerationParams, SubmissionKind
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import ServerLoad
from guanaco_server.deployments.tables import Phase
from guanaco_server.scaling.replicas import ReplicaLimits
from tests.fixtures.scaled import IDLE_S, LIMITS, QUIET_S, Scaled
from tests.fixtures.world import BOT, eventually


class Hasty(Scaled):
    """A world where a message waits only a moment for a server to wake."""

    changes = {**Scaled.changes, "wake_wait_s": 0.3}


async def asleep(
    database: Database, make: type[Scaled] = Scaled
) -> tuple[Scaled, httpx.AsyncClient, str]:
    """A submission that has its one rating and sleeps, and its conversation."""
    world = make(database, feedback_target=1)
    await world.serve("acme-tiny_v1")
    http = await world.http(Role.BACKEND, "app")
    conversation = await world.open(http)
    await world.rate(http, conversation)
    await world.routing.refresh()
    world.clock.advance(IDLE_S + 1)
    await world.autoscaler.step()
    await world.reconciler.reconcile()
    assert await world.phase("acme-tiny_v1") is Phase.SLEEPING
    return world, http, conversation


async def test_rated_idle_submission_sleeps_until_it_is_asked_for(
    database: Database,
) -> None:
    world, _, _ = await asleep(database)
    assert world.cluster.deployments == {}
    await world.reconciler.reconcile()
    assert await world.phase("acme-tiny_v1") is Phase.SLEEPING, "nobody asks for it"
    admin = await world.account(Role.ADMIN)
    assert (await world.submissions.require_visible(admin, "acme-tiny_v1")).is_asleep


async def test_a_sleeping_model_that_an_app_chooses_is_woken(database: Database) -> None:
    world, _, _ = await asleep(database)
    admin = await world.http(Role.ADMIN)
    body = {"user_id": "u2", "bot": BOT.model_dump(), "consent": True, "model": "acme-tiny_v1"}
    assert (await admin.post("/conversations", json=body)).status_code == 201
    assert await world.phase("acme-tiny_v1") is Phase.WAKING
    read = (await admin.get("/submissions/acme-tiny_v1")).json()
    assert read["is_asleep"] is False


@pytest.mark.slow
@pytest.mark.both_databases
async def test_opening_wakes_a_sleeping_model_without_waiting(
    database: Database,
) -> None:
    world, http, _ = await asleep(database)
    conversation = await world.open(http, "user-2")
    assert await world.phase("acme-tiny_v1") is Phase.WAKING
    await world.open(http, "user-3")
    for _ in range(2):  # gives it room and starts it; finds it healthy
        await world.reconciler.reconcile()
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hi"})
    assert (answer.status_code, answer.json()["content"]) == (200, "Hello from memory.")


async def test_what_sleeps_is_left_asleep_while_another_is_awake(database: Database) -> None:
    world, http, _ = await asleep(database)
    await world.serve("acme-awake_v1")
    await world.routing.refresh()
    assert (await http.get("/assignment")).json() == {"submission_id": "acme-awake_v1"}
    assert await world.phase("acme-tiny_v1") is Phase.SLEEPING


async def test_sleeper_is_woken_when_turns_wait_for_all_awake(
    database: Database,
) -> None:
    world, http, _ = await asleep(database)
    await world.serve("acme-awake_v1")
    await world.deployments.note("acme-awake_v1", capacity=1)
    await world.routing.refresh()
    with await world.places.take("acme-awake_v1", Asker("app", "user-1")):
        waits = asyncio.create_task(world.places.take("acme-awake_v1", Asker("app", "user-2")))

        async def is_waiting() -> bool:
            return world.places.waiting("acme-awake_v1") == 1

        await eventually(is_waiting)
        assert (await http.get("/assignment")).json() == {"submission_id": "acme-awake_v1"}
        assert await world.phase("acme-tiny_v1") is Phase.WAKING
    (await waits).__exit__()


async def test_the_next_message_of_a_conversation_wakes_it(database: Database) -> None:
    world, http, conversation = await asleep(database)
    send = asyncio.create_task(
        http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    )

    async def is_waking() -> bool:
        return await world.phase("acme-tiny_v1") is Phase.WAKING

    await eventually(is_waking)
    for _ in range(2):  # gives it room and starts it; finds it healthy
        await world.reconciler.reconcile()
    answer = await send
    assert (answer.status_code, answer.json()["content"]) == (200, "Hello from memory.")
    assert (await world.row("acme-tiny_v1")).restarts == 0, "waking is no crash"


async def test_message_that_waits_too_long_is_told_when_to_return(
    database: Database,
) -> None:
    _, http, conversation = await asleep(database, Hasty)
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert (answer.status_code, answer.json()["error"]) == (503, "model_waking")
    assert answer.headers["Retry-After"] == "3", "as long as its last start took"
    assert "sleeps and is being started" in answer.json()["detail"]


@pytest.mark.parametrize("but", ["unrated", "recently used", "a reply is being written"])
async def test_what_is_needed_does_not_sleep(database: Database, but: str) -> None:
    world = Scaled(database, feedback_target=1)
    go_on = asyncio.Event()
    world.model_server.scripts = [Script(go_on=go_on)]
    await world.serve("acme-tiny_v1")
    http = await world.http(Role.BACKEND, "app")
    conversation = await world.open(http)
    if but != "unrated":
        await world.rate(http, conversation)
    world.clock.advance(IDLE_S + 1)
    if but == "recently used":
        await world.routing.target("acme-tiny_v1")
    await world.routing.refresh()
    replying = (
        [asyncio.create_task(http.post(f"/conversations/{conversation}/messages", json={"content": "Hi"}))]
        if but == "a reply is being written"
        else []
    )  # fmt: skip

    async def is_replying() -> bool:
        return bool(await world.activity.open_streams()) or not replying

    await eventually(is_replying)
    await world.autoscaler.step()
    assert await world.phase("acme-tiny_v1") is Phase.READY
    go_on.set()
    for reply in replying:
        assert (await reply).status_code == 200


async def test_what_does_not_sleep_is_not_woken(database: Database) -> None:
    world = Scaled(database)
    await world.serve("acme-tiny_v1")
    world.cluster.die(deployment_name("acme-tiny_v1"))
    await world.reconciler.reconcile()
    assert (await world.routing.target("acme-tiny_v1")).endpoints == ()
    assert await world.phase("acme-tiny_v1") is Phase.RESTARTING


async def test_new_submission_waits_knows_why_and_gets_room(
    database: Database,
) -> None:
    world = Scaled(database, servers=1)
    await world.serve("old")
    await world.ask("new", "bob")
    await world.reconciler.reconcile()
    assert await world.deployments.waits_for("new") == (
        "1 of 1 model servers are taken, and none can be freed: 1 started or had traffic within 50 s."
    )
    world.clock.advance(QUIET_S)
    await world.reconciler.reconcile()  # chooses the victim and stops it
    assert await world.phase("old") is Phase.SLEEPING
    await world.reconciler.reconcile()  # gives its room away
    assert await world.phase("new") is Phase.STARTING
    assert world.cluster.deployments == {}, "its pipeline stage starts it"


async def test_submission_stopped_unrated_returns_when_there_is_room(database: Database) -> None:
    world = Scaled(database, servers=1)
    await world.serve("old")
    world.clock.advance(QUIET_S)
    await world.ask("new", "bob")
    for _ in range(3):
        await world.reconciler.reconcile()
    assert await world.phase("old") is Phase.SLEEPING
    await world.withdraw("new")
    for _ in range(2):
        await world.reconciler.reconcile()
    assert await world.phase("old") is Phase.READY


@pytest.mark.slow
async def test_conversation_of_a_stopped_submission_says_what_it_waits_for(
    database: Database,
) -> None:
    world = Hasty(database, servers=1)
    await world.serve("old")
    world.clock.advance(QUIET_S)
    await world.ask("new", "bob")
    for _ in range(2):
        await world.reconciler.reconcile()
    with pytest.raises(ModelWaking):
        await world.routing.target("old")
    await world.reconciler.reconcile()
    with pytest.raises(ModelWaking, match="1 of 1 model servers are taken"):
        await world.routing.target("old")


async def _is(world: Scaled, submission_id: str, phase: Phase) -> bool:
    return await world.phase(submission_id) is phase


@pytest.mark.both_databases
async def test_granted_room_survives_a_second_wish_of_the_run(
    database: Database,
) -> None:
    world = Scaled(database, servers=1)
    await world.ask("new", "ada")
    await world.reconciler.reconcile()
    await world.deployments.wish(world.deployment("new"))
    assert await world.deployments.waits_for("new") is None
    await world.deployments.wish(Deployment("new", 2, "a" * 64, 1_096))
    assert await world.deployments.waits_for("new") is not None


async def scaled_up(database: Database, servers: int = 0) -> Scaled:
    """A deployment whose load asks for three replicas; its stress check showed a capacity of ten."""
    world = Scaled(database, servers)
    await world.serve("acme-tiny_v1")
    await world.deployments.note("acme-tiny_v1", capacity=10)
    await under(world, 15)
    return world


async def under(world: Scaled, requests: int, seconds: int = 60) -> None:
    """So many requests at once, for a while."""
    name = deployment_name("acme-tiny_v1")
    for _ in range(0, seconds + 5, 5):
        replicas = world.cluster.deployments[name].spec.replicas
        endpoint = world.deployments.replicas("acme-tiny_v1")[0]
        world.model_server.loads[endpoint] = ServerLoad(round(requests / replicas), 0)
        await world.autoscaler.step()
        await world.reconciler.reconcile()
        world.clock.advance(5)


@pytest.mark.slow
@pytest.mark.both_databases
async def test_replicas_follow_the_load_without_a_restart(database: Database) -> None:
    world = await scaled_up(database)
    name = deployment_name("acme-tiny_v1")
    assert world.cluster.deployments[name].spec.replicas == 3
    row = await world.row("acme-tiny_v1")
    assert (row.wanted_replicas, row.applied_replicas) == (3, 3)
    await under(world, 0, 300)
    assert world.cluster.deployments[name].spec.replicas == 1
    assert world.cluster.starts == [name]


async def test_further_replicas_take_free_room_only(database: Database) -> None:
    world = await scaled_up(database, servers=2)
    assert world.cluster.deployments[deployment_name("acme-tiny_v1")].spec.replicas == 2


async def test_no_load_is_no_reason_to_scale(database: Database) -> None:
    world = await scaled_up(database)
    endpoint = world.deployments.replicas("acme-tiny_v1")[0]
    before: datetime | None = (await world.row("acme-tiny_v1")).scaled_at
    world.model_server.unhealthy.add(endpoint)
    for _ in range(30):
        await world.autoscaler.step()
        world.clock.advance(5)
    row = await world.row("acme-tiny_v1")
    assert (row.wanted_replicas, row.scaled_at) == (3, before)


async def test_each_published_submission_has_the_least_number_of_replicas(
    database: Database,
) -> None:
    world = Scaled(database)
    world.scale_by(ReplicaLimits(min_replicas=2, max_replicas=2))
    name = deployment_name("acme-tiny_v1")
    await world.serve("acme-tiny_v1")
    await world.ask("deploying_v1", "bob")
    await world.autoscaler.step()
    assert (await world.row("deploying_v1")).wanted_replicas == 1, "the first one comes first"
    await world.reconciler.reconcile()
    assert world.cluster.deployments[name].spec.replicas == 2
    assert world.cluster.starts == [name]
    world.scale_by(ReplicaLimits(min_replicas=1, max_replicas=1))
    await world.autoscaler.step()
    await world.reconciler.reconcile()
    assert world.cluster.deployments[name].spec.replicas == 1


class Peaked(Scaled):
    """Two submissions at peak, one otherwise, stay awake; at peak each has two replicas. The clock begins at 0:00 UTC."""

    changes = Scaled.changes | {
        "peak_hours": ["Mon-Sun 02:00-03:00"],
        "peak_time_zone": "Europe/Berlin",  # 1:00 UTC
        "min_awake": 1,
        "peak_min_awake": 2,
        "peak_min_replicas": 2,
    }

    async def until(self, hour: int) -> None:
        """Let time pass to a quarter of an hour after that, with one turn of each loop."""
        self.clock.at = self.clock.at.replace(hour=hour, minute=15, second=0)
        for _ in range(3):
            await self.autoscaler.step()
            await self.reconciler.reconcile()
            self.clock.advance(61)

    async def serve_rated(self, submission_id: str) -> None:
        await self.serve(submission_id, submission_id)
        async with await self.http(Role.BACKEND) as backend:
            await self.rate(backend, await self.open(backend, submission_id))


@pytest.mark.slow
async def test_peaks_wake_submissions_and_scale_replicas_up_and_down(
    database: Database,
) -> None:
    world = Peaked(database, feedback_target=1)
    names = ["a_v1", "b_v1", "c_v1"]
    for name in names:
        await world.serve_rated(name)

    async def awake() -> list[str]:
        return [name for name in names if (await world.phase(name)).has_server]

    await world.until(0)
    assert await awake() == ["c_v1"], "the latest used is kept"
    await world.until(1)
    assert await awake() == ["b_v1", "c_v1"]
    assert (await world.row("c_v1")).wanted_replicas == 2
    await world.until(3)
    assert await awake() == ["c_v1"]


async def test_a_floor_takes_no_room_from_a_new_submission(database: Database) -> None:
    world = Peaked(database, servers=1, feedback_target=1)
    await world.serve_rated("a_v1")
    world.clock.advance(QUIET_S + 1)
    await world.ask("new_v1", "bob")
    for _ in range(3):
        await world.reconciler.reconcile()
        await world.autoscaler.step()
    assert await world.phase("a_v1") is Phase.SLEEPING
    assert await world.phase("new_v1") is Phase.STARTING
    await world.until(1)
    assert await world.phase("a_v1") is Phase.SLEEPING, "there is no free room for the floor"


@pytest.mark.parametrize(("shares_addresses", "replicas"), [(True, 3), (False, 2)])
async def test_one_address_stands_for_replicas_only_where_shared(
    database: Database, shares_addresses: bool, replicas: int
) -> None:
    """The one that answers is busy with nine of ten; its fellow is being started."""
    world = Scaled(database)
    world.scale_by(LIMITS, shares_addresses)
    await world.serve("acme-tiny_v1")
    await world.deployments.note("acme-tiny_v1", capacity=10, wanted_replicas=2, applied_replicas=2)
    (endpoint,) = world.deployments.replicas("acme-tiny_v1")
    world.model_server.loads[endpoint] = ServerLoad(7, 0)
    for _ in range(20):
        await world.autoscaler.step()
        world.clock.advance(5)
    assert (await world.row("acme-tiny_v1")).wanted_replicas == replicas


async def judged(database: Database, servers: int = 0) -> Scaled:
    """A reward model, and a chat model that names it and wants one rating."""
    world = Scaled(database, servers, feedback_target=1)
    await world.serve("judge_v1", kind=SubmissionKind.REWARD)
    await world.serve("chat_v1", params=GenerationParams(best_of=2), reward="judge_v1")
    return world


@pytest.mark.both_databases
async def test_reward_model_sleeps_and_wakes_with_its_users(
    database: Database,
) -> None:
    world = await judged(database)
    http = await world.http(Role.BACKEND, "app")
    conversation = await world.open(http)
    world.clock.advance(IDLE_S + 1)
    await world.autoscaler.step()
    assert await world.phase("judge_v1") is Phase.READY, "an unrated model works with it"
    await world.rate(http, conversation)
    for asleep in ("chat_v1", "judge_v1"):
        await world.routing.refresh()
        world.clock.advance(IDLE_S + 1)
        await world.autoscaler.step()
        await world.reconciler.reconcile()
        assert await world.phase(asleep) is Phase.SLEEPING
    await world.reconciler.reconcile()
    assert await world.phase("judge_v1") is Phase.SLEEPING, "nobody needs it"
    sending = asyncio.create_task(
        http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    )
    await eventually(lambda: _is(world, "chat_v1", Phase.WAKING))
    for _ in range(3):
        await world.reconciler.reconcile()
    assert (await sending).status_code == 200
    assert await world.phase("chat_v1") is Phase.READY
    assert await world.phase("judge_v1") is Phase.READY, "nobody had to ask for it"


async def test_reward_model_in_use_makes_no_room(database: Database) -> None:
    world = await judged(database, servers=2)
    world.clock.advance(QUIET_S)
    await world.ask("new", "bob")
    await world.reconciler.reconcile()
    assert await world.phase("judge_v1") is Phase.READY
    assert await world.phase("chat_v1") is Phase.SLEEPING
