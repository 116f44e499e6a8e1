"""Submissions that differ only in what each request carries share one model server; the cluster and the engine are in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from guanaco.accounts import Role
from guanaco.errors import ModelServerDied
from guanaco_server.chat.gateway.places.places import HELD_S
from guanaco_server.chat.tables import GatewayPlacesRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import ServerLoad
from guanaco_server.deployments.overview import EngineCapacity
from guanaco_server.deployments.tables import Phase
from guanaco_server.deployments.versions import beside
from guanaco_server.submissions.pipeline.server_start import evidence
from tests.fixtures.reconciling import reconciler_of
from tests.fixtures.scaled import IDLE_S, Scaled
from tests.fixtures.world import World

FIRST, SECOND = "acme-tiny_v1", "acme-tiny_v2"
NAME = deployment_name(FIRST)


class Shared(World):
    """A world with two submissions of one artifact, and a reconciler that allows one restart."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.given_up: list[str] = []
        self.reconciler = reconciler_of(self, self._give_up)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        self.given_up.append(submission_id)
        await self.journal.fail_published(submission_id, ModelServerDied(evidence(lines)))

    async def deploy(self, key: str, run: int = 1, max_model_tokens: int = 1_096) -> Deployment:
        wanted = Deployment(key, run, "a" * 64, max_model_tokens)
        given = await self.deployments.wish(wanted)
        await self.deployments.servers.apply(given)
        endpoint = self.cluster.deployments[deployment_name(given.server_key)].state.endpoint
        await self.deployments.mark_ready(key, endpoint)
        return given

    async def serve_both(self) -> None:
        ada = await self.account(Role.DEVELOPER, "ada")
        for submission_id in (FIRST, SECOND):
            await self.publish(ada, submission_id)
            await self.deploy(submission_id)
        await self.reconciler.reconcile()

    async def phases(self) -> dict[str, Phase]:
        return {row.submission_id: row.phase for row in await self.deployments.list_wishes()}


class Sharing(Scaled):
    """A world that scales, where two submissions share an engine and others have their own."""

    def deployment(self, submission_id: str) -> Deployment:
        is_private = submission_id not in (FIRST, SECOND)
        return replace(super().deployment(submission_id), is_private=is_private)


@pytest.fixture
async def world(database: Database) -> Shared:
    shared = Shared(database)
    await shared.serve_both()
    return shared


@pytest.mark.both_databases
async def test_two_submissions_share_one_model_server(world: Shared) -> None:
    assert world.cluster.starts == [NAME]
    assert world.deployments.replicas(FIRST) == world.deployments.replicas(SECOND) != ()
    assert world.deployments.model_name(SECOND) == f"{FIRST}#{'a' * 64}", (
        "the name it was started with, and its artifact"
    )


@pytest.mark.parametrize(
    "other", [{"artifact_key": "b" * 64}, {"max_model_tokens": 2_048}, {"queue": "b"}], ids=str
)
async def test_another_engine_is_not_shared(world: Shared, other: dict[str, object]) -> None:
    third = replace(Deployment("acme-tiny_v3", 1, "a" * 64, 1_096), **other)
    assert (await world.deployments.wish(third)).server_key == "acme-tiny_v3"


@pytest.mark.both_databases
async def test_none_joins_while_a_gateway_of_the_version_before_serves(world: Shared) -> None:
    """It would ask the shared server for a model that the server does not know."""
    old = GatewayPlacesRow(
        submission_id=FIRST, gateway="old", held=1, wanted=1, apps={"app": 1}, submissions=None
    )
    old.held_until = world.clock.now() + timedelta(seconds=HELD_S)
    async with world.database.write() as session:
        session.add(old)
    assert (await world.deploy("acme-tiny_v3")).server_key == "acme-tiny_v3"
    assert (await world.deployments.wish(Deployment(SECOND, 1, "a" * 64, 1_096))).server == FIRST, (
        "one that has joined before stays"
    )
    world.clock.advance(HELD_S + 1)
    assert (await world.deploy("acme-tiny_v4")).server_key == FIRST


async def test_teardown_of_one_leaves_the_other_served(world: Shared) -> None:
    await world.withdraw(FIRST)
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == [NAME]
    assert world.deployments.replicas(SECOND)
    await world.withdraw(SECOND)
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == []


async def test_a_submission_that_comes_back_joins_its_old_server(world: Shared) -> None:
    await world.withdraw(FIRST)
    await world.deploy(FIRST, run=2)
    assert world.cluster.starts == [NAME]


async def test_its_name_is_taken_by_another_engine(world: Shared) -> None:
    """Its old server serves another submission, and it needs one of another length."""
    await world.withdraw(FIRST)
    given = await world.deploy(FIRST, run=2, max_model_tokens=2_048)
    assert given.server_key == beside(FIRST, 2)
    assert world.cluster.starts == [NAME, deployment_name(beside(FIRST, 2))]
    await world.reconciler.reconcile()
    assert await world.phases() == {FIRST: Phase.READY, SECOND: Phase.READY}


async def test_a_crash_and_restart_serves_both_again(world: Shared) -> None:
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert not world.deployments.replicas(FIRST)
    assert not world.deployments.replicas(SECOND)
    assert world.cluster.starts == [NAME, NAME]
    await world.reconciler.reconcile()
    assert await world.phases() == {FIRST: Phase.READY, SECOND: Phase.READY}
    assert world.deployments.replicas(FIRST) == world.deployments.replicas(SECOND) != ()


async def test_a_server_that_never_answers_is_given_up_for_all(world: Shared) -> None:
    for _ in range(3):
        world.cluster.die(NAME)
        await world.reconciler.reconcile()
    assert sorted(world.given_up) == [FIRST, SECOND]


@pytest.mark.both_databases
@pytest.mark.parametrize("guilty", range(5))
async def test_only_who_kills_a_shared_server_fails(world: Shared, guilty: int) -> None:
    keys = [FIRST, SECOND, *(f"acme-tiny_v{number}" for number in range(3, 6))]
    ada = await world.account(Role.DEVELOPER, "ada")
    for key in keys[2:]:
        await world.publish(ada, key)
        await world.deploy(key)
    for _ in range(40):
        row = await world.deployments.find(keys[guilty])
        if row is not None and row.phase is Phase.READY:  # it is asked, and kills its server
            world.cluster.die(deployment_name(row.server_key))
        await world.reconciler.reconcile()
        await world.platform.rooms.scaling.admission.step()
        world.clock.advance(20)
    assert world.given_up == [keys[guilty]]
    phases = await world.phases()
    innocent = {key for key in keys if key != keys[guilty]}
    assert {phases[key] for key in innocent} == {Phase.READY}
    assert all(world.deployments.replicas(key) for key in innocent)
    assert len(await world.cluster.list_deployments()) <= 4
    given = await world.deployments.wish(Deployment("acme-tiny_v9", 1, "a" * 64, 1_096))
    assert given.server is None, "nobody joins a server that kept dying"


async def test_a_restarted_platform_finds_both_again(world: Shared) -> None:
    reconciler = reconciler_of(world, world._give_up)
    await world.cluster.delete(NAME)
    for _ in range(2):
        await reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]
    assert await world.phases() == {FIRST: Phase.READY, SECOND: Phase.READY}


async def test_sleep_of_one_leaves_the_server_and_waking_is_instant(world: Shared) -> None:
    now = world.clock.now()
    assert await world.deployments.put_to_sleep(FIRST, now)
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == [NAME]
    assert world.deployments.replicas(SECOND)
    assert not world.deployments.replicas(FIRST)
    await world.deployments.wake(FIRST)
    await world.platform.rooms.scaling.admission.step()
    await world.reconciler.reconcile()
    assert world.deployments.replicas(FIRST)
    assert world.cluster.starts == [NAME]


async def test_the_server_stops_when_the_last_one_sleeps(world: Shared) -> None:
    for submission_id in (FIRST, SECOND):
        assert await world.deployments.put_to_sleep(submission_id, world.clock.now())
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == []


@pytest.mark.both_databases
async def test_a_redeploy_of_one_moves_it_alone(world: Shared) -> None:
    key = beside(FIRST, 2)
    await world.deploy(key, run=2)
    versions = world.platform.rooms.deployments.versions
    async with world.database.write() as session:
        (endpoint,) = await versions.take_over(session, key)
    (served,) = world.deployments.replicas(SECOND)
    world.model_server.loads = {served: ServerLoad(1, 0), endpoint: ServerLoad(1, 0)}
    assert await versions.is_idle(key), "what its sibling does on their server is no reason to wait"
    assert not await versions.is_idle(FIRST)
    async with world.database.write() as session:
        await world.deployments.withdraw(session, key)  # the old one has drained
    await world.reconciler.reconcile()
    assert sorted(await world.cluster.list_deployments()) == sorted([NAME, deployment_name(key)])
    assert world.deployments.replicas(FIRST) != world.deployments.replicas(SECOND)
    third = await world.deploy("acme-tiny_v3")
    assert third.server_key == key, "new ones join the newest"


async def test_an_engine_carries_the_most_that_any_check_showed(world: Shared) -> None:
    """The second was checked while the first was used."""
    await world.deployments.note(FIRST, capacity=40)
    await world.deployments.note(SECOND, capacity=9)
    assert await world.overview.capacities() == {FIRST: EngineCapacity((FIRST, SECOND), 1, 40)}


@pytest.mark.both_databases
async def test_the_load_of_a_shared_server_is_counted_once(world: Shared) -> None:
    (endpoint,) = world.deployments.replicas(FIRST)
    world.model_server.loads = {endpoint: ServerLoad(3, 1)}
    assert await world.overview.server_loads() == {FIRST: [ServerLoad(3, 1)]}
    await world.withdraw(FIRST)
    assert await world.overview.server_loads() == {SECOND: [ServerLoad(3, 1)]}, (
        "the one that began it has gone"
    )


async def test_one_that_joins_has_the_replicas_of_the_others(world: Shared) -> None:
    await world.deployments.note(FIRST, wanted_replicas=2)
    await world.reconciler.reconcile()
    assert world.cluster.deployments[NAME].spec.replicas == 2
    await world.deploy("acme-tiny_v3")
    for submission_id in (FIRST, SECOND, "acme-tiny_v3"):
        row = await world.deployments.find(submission_id)
        assert row is not None
        assert row.applied_replicas == 2
    assert world.cluster.starts == [NAME]


@pytest.fixture
async def scaled(database: Database) -> Sharing:
    world = Sharing(database, servers=2, feedback_target=1)
    for submission_id in (FIRST, SECOND):
        await world.serve(submission_id)
    return world


async def test_replicas_follow_the_sum_of_all_requests(scaled: Sharing) -> None:
    await scaled.deployments.note(FIRST, capacity=10)
    (endpoint,) = scaled.deployments.replicas(SECOND)
    scaled.model_server.loads = {endpoint: ServerLoad(7, 0)}
    for _ in range(3):
        await scaled.autoscaler.step()
        scaled.clock.advance(5)
    for submission_id in (FIRST, SECOND):
        assert (await scaled.row(submission_id)).wanted_replicas == 2
    await scaled.reconciler.reconcile()
    assert scaled.cluster.deployments[NAME].spec.replicas == 2


async def test_an_engine_sleeps_when_all_its_submissions_are_idle(database: Database) -> None:
    scaled = Sharing(database, feedback_target=1)
    http = await scaled.http(Role.BACKEND, "app")
    for submission_id in (FIRST, SECOND):
        await scaled.serve(submission_id)
        await scaled.rate(http, await scaled.open(http, submission_id))
    scaled.clock.advance(IDLE_S + 1)
    await scaled.deployments.record_traffic({SECOND: scaled.clock.now()})
    await scaled.autoscaler.step()
    assert await scaled.phase(FIRST) is Phase.READY, "its sleep alone would free nothing"
    scaled.clock.advance(IDLE_S + 1)
    await scaled.autoscaler.step()
    assert [await scaled.phase(name) for name in (FIRST, SECOND)] == [Phase.SLEEPING] * 2


@pytest.mark.both_databases
async def test_two_submissions_waking_on_one_engine_need_one_room(scaled: Sharing) -> None:
    """Another submission has one of the two places for servers."""
    await scaled.serve("other_v1")
    for submission_id in (FIRST, SECOND):
        assert await scaled.deployments.put_to_sleep(submission_id, scaled.clock.now())
    await scaled.reconciler.reconcile()
    for submission_id in (FIRST, SECOND):
        await scaled.deployments.wake(submission_id)
    for _ in range(2):
        await scaled.reconciler.reconcile()
    assert [await scaled.phase(name) for name in (FIRST, SECOND)] == [Phase.READY] * 2
    assert await scaled.phase("other_v1") is Phase.READY, "nobody had to go"
