"""LoRA adapters on their base's model server; the cluster and the engine are in memory. test_adapters_on_vllm.py has real ones."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import AdapterRefused
from guanaco_server.deployments.tables import DeploymentRow
from tests.fixtures.reconciling import reconciler_of
from tests.fixtures.world import World

BASE, ONE, TWO = "a" * 64, "1" * 64, "2" * 64
FIRST, SECOND, WHOLE = "acme-one_v1", "acme-two_v1", "acme-tiny_v1"
KEYS = {FIRST: ONE, SECOND: TWO}


class Adapters(World):
    """A world in which submissions are served as adapters of one base."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.reconciler = reconciler_of(self, self._give_up)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        raise AssertionError(f"{submission_id} was given up")

    async def serve(self, submission_id: str, *, takes_adapters: bool = True) -> Deployment:
        """Do as the deploy stage does: wish, start, have the adapter loaded."""
        key, base = KEYS.get(submission_id, BASE), BASE if takes_adapters else None
        wanted = Deployment(submission_id, 1, key, 1_096, base_key=base)
        given = await self.deployments.wish(wanted)
        await self.deployments.servers.apply(given)
        endpoint = self.endpoint_of(given)
        await self.deployments.adapters.load(given, endpoint)
        await self.deployments.mark_ready(submission_id, endpoint)
        return given

    def endpoint_of(self, given: Deployment) -> str:
        return self.cluster.deployments[deployment_name(given.server_key)].state.endpoint

    async def row(self, submission_id: str) -> DeploymentRow:
        row = await self.deployments.find(submission_id)
        assert row is not None
        return row


@pytest.fixture
async def world(database: Database) -> Adapters:
    world = Adapters(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    for submission_id in (FIRST, SECOND, WHOLE):
        await world.publish(ada, submission_id)
    return world


async def test_adapters_of_one_base_share_a_server(world: Adapters) -> None:
    for submission_id in (FIRST, SECOND):
        given = await world.serve(submission_id)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [deployment_name(FIRST)]
    command = world.cluster.deployments[deployment_name(FIRST)].spec.command
    assert "--enable-lora" in command
    assert world.store.uri(BASE) in command
    names = [world.deployments.model_name(name) for name in (FIRST, SECOND)]
    assert names == [f"{ONE}#{BASE}", f"{TWO}#{BASE}"]
    assert names == [(await world.row(name)).model for name in (FIRST, SECOND)]
    assert world.model_server.adapters[world.endpoint_of(given)] == {ONE, TWO}


@pytest.mark.parametrize("order", [(WHOLE, FIRST), (FIRST, WHOLE)], ids=str)
async def test_a_base_and_its_adapters_share_a_server(
    world: Adapters, order: tuple[str, str]
) -> None:
    for submission_id in order:
        given = await world.serve(submission_id)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [deployment_name(order[0])]
    names = [world.deployments.model_name(name) for name in (WHOLE, FIRST)]
    assert names == [f"{order[0]}#{BASE}", f"{ONE}#{BASE}"]
    assert world.model_server.adapters[world.endpoint_of(given)] == {ONE}
    await world.withdraw(FIRST)
    await world.reconciler.reconcile()
    assert world.model_server.adapters[world.endpoint_of(given)] == set()
    assert world.deployments.replicas(WHOLE) == (world.endpoint_of(given),)


async def test_a_base_whose_server_takes_none_is_served_apart(world: Adapters) -> None:
    await world.serve(WHOLE, takes_adapters=False)
    await world.serve(FIRST)
    assert world.cluster.starts == [deployment_name(name) for name in (WHOLE, FIRST)]
    assert "--enable-lora" not in world.cluster.deployments[deployment_name(WHOLE)].spec.command


async def test_a_server_that_was_started_again_is_given_its_adapters(world: Adapters) -> None:
    for submission_id in (FIRST, SECOND):
        given = await world.serve(submission_id)
    endpoint = world.endpoint_of(given)
    world.model_server.adapters[endpoint] = set()
    await world.reconciler.reconcile()
    assert world.model_server.adapters[endpoint] == {ONE, TWO}
    assert world.deployments.replicas(FIRST) == world.deployments.replicas(SECOND) == (endpoint,)


@pytest.mark.both_databases
async def test_teardown_of_one_forgets_its_adapter_and_leaves_the_others(world: Adapters) -> None:
    for submission_id in (FIRST, SECOND):
        given = await world.serve(submission_id)
    await world.withdraw(FIRST)
    await world.reconciler.reconcile()
    endpoint = world.endpoint_of(given)
    assert world.model_server.adapters[endpoint] == {TWO}
    assert world.deployments.replicas(SECOND) == (endpoint,)
    await world.withdraw(SECOND)
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == []


async def test_an_adapter_that_cannot_be_loaded_is_served_by_nobody(world: Adapters) -> None:
    given = await world.serve(FIRST)
    await world.reconciler.reconcile()
    endpoint = world.endpoint_of(given)
    world.model_server.adapters[endpoint] = set()
    world.model_server.adapter_fault = AdapterRefused("The artifact is damaged.")
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.deployments.replicas(FIRST) == ()
    assert (await world.row(FIRST)).problem == "The artifact is damaged."
    world.model_server.adapter_fault = None
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.deployments.replicas(FIRST) == (endpoint,)
    assert (await world.row(FIRST)).problem is None


async def test_the_base_of_a_served_adapter_is_needed(world: Adapters) -> None:
    await world.serve(FIRST)
    assert BASE in await world.submissions.catalog.needed_artifacts(world.clock.now())
