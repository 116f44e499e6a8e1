"""Each pod is a replica with an address of its own: what the platform makes of pods that come, hang and go."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco.submissions import GenerationParams
from guanaco_server.clusters.cluster import Cluster, ReplicaPhase, ReplicaState
from guanaco_server.clusters.federation import Federation, Region
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.manifests.pods import near_of
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import Generation
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.tables import Phase
from tests.fixtures.kubernetes import SCRIPTED, FakeWorld, fake_world, scripted, until
from tests.fixtures.reconciling import compute_of, deployments_of, reconciler_of
from tests.fixtures.world import World, eventually

pytestmark = pytest.mark.slow

ID = "acme-tiny_v1"
NAME = deployment_name(ID)
Json = dict[str, Any]


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(kubernetes: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with kubernetes.cluster() as cluster:
        yield cluster


def address_of(pod: Json) -> str:
    return f"http://{pod['status']['podIP']}:8000"


async def seen(cluster: Cluster, holds: Callable[[ReplicaState], bool]) -> ReplicaState:
    """The state, once it is so."""

    async def look() -> ReplicaState | None:
        state = await cluster.observe("m-tiny")
        return state if state and holds(state) else None

    found = await until(look)
    assert found is not None
    return found


def ready(state: ReplicaState) -> list[str]:
    return [one.endpoint for one in state.replicas if one.is_ready]


async def test_two_of_three_pods_are_ready_and_one_is_silent(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted(replicas=3))
    await seen(cluster, lambda state: len(ready(state)) == 3)
    pods = {address_of(pod): pod for pod in kubernetes.kubelet.pods("m-tiny")}
    deaf = min(pods)
    kubernetes.kubelet.unready.add(pods[deaf]["metadata"]["name"])
    state = await seen(cluster, lambda state: len(ready(state)) == 2)
    assert set(ready(state)) == pods.keys() - {deaf}
    assert {one.endpoint for one in state.replicas} == pods.keys()
    assert (state.phase, state.endpoint, state.is_settled) == (
        ReplicaPhase.RUNNING,
        ready(state)[0],
        True,
    )


async def test_a_pod_that_is_terminating_is_no_replica_any_more(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted(replicas=3))
    before = await seen(cluster, lambda state: len(ready(state)) == 3)
    with kubernetes.kubelet.paused():
        leaving = kubernetes.kubelet.pods("m-tiny")[0]
        kubernetes.server.store.delete(("pods", "models", leaving["metadata"]["name"]))
        state = await seen(cluster, lambda state: len(state.replicas) == 2)
        assert set(ready(state)) == set(ready(before)) - {address_of(leaving)}


async def test_one_replica_is_stopped_and_another_pod_replaces_it(
    cluster: KubernetesCluster,
) -> None:
    await cluster.apply_deployment(scripted(replicas=3))
    before = ready(await seen(cluster, lambda state: len(ready(state)) == 3))
    assert await cluster.stop_replica("m-tiny", before[1])
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert before[1] not in [one.endpoint for one in state.replicas]
    after = ready(await seen(cluster, lambda state: len(ready(state)) == 3))
    assert len({*before, *after}) == 4
    assert not await cluster.stop_replica("m-tiny", before[1])


async def test_one_that_ended_beside_others_is_replaced_by_applying_again(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    spec = scripted(replicas=2)
    await cluster.apply_deployment(spec)
    before = ready(await seen(cluster, lambda state: len(ready(state)) == 2))
    dying = kubernetes.kubelet.pods("m-tiny")[0]
    kubernetes.kubelet.processes[dying["metadata"]["uid"]].stop()
    state = await seen(cluster, lambda state: not state.is_settled)
    assert state.phase is ReplicaPhase.RUNNING
    assert state.problem == "A replica exited with status 137."
    assert ready(state) == [endpoint for endpoint in before if endpoint != address_of(dying)]
    await cluster.apply_deployment(spec)
    after = ready(await seen(cluster, lambda state: len(ready(state)) == 2))
    assert len({*before, *after}) == 3


async def test_where_pods_have_no_addresses_a_service_stands_for_all(
    kubernetes: FakeWorld,
) -> None:
    server = VllmServer()
    cluster = KubernetesCluster(kubernetes.api(), kubernetes.with_one_address())
    await cluster.start()
    try:
        await cluster.apply_deployment(scripted(replicas=2))
        state = await seen(cluster, lambda _: "services/m-tiny" in kubernetes.left())
        assert state.endpoint.endswith("/services/m-tiny:8000/proxy")
        assert state.replicas == ()
        await until(lambda: server.is_healthy(state.endpoint))
        assert not await cluster.stop_replica("m-tiny", state.endpoint)
    finally:
        await cluster.close()
        await server.close()


async def test_every_regions_pods_are_replicas_of_the_federation(kubernetes: FakeWorld) -> None:
    regions = {
        name: KubernetesCluster(
            kubernetes.api(namespace=name), replace(kubernetes.options(), namespace=name)
        )
        for name in ("models", "others")
    }
    server = VllmServer()
    federation = Federation(
        {name: Region(cluster) for name, cluster in regions.items()}, server.is_healthy, near=""
    )
    await federation.start()
    try:
        await federation.apply_deployment(scripted(replicas=3))
        state = await seen(federation, lambda state: len(ready(state)) == 3)
        assert len({one.region for one in state.replicas}) == 1
        assert await federation.stop_replica("m-tiny", ready(state)[2])
        again = await seen(federation, lambda state: len(ready(state)) == 3)
        assert {*ready(state)[:2]} < {*ready(again)}
    finally:
        await federation.close()
        await server.close()


class Deployed(World):
    """A submission whose servers are pods; its reconciler, and a gateway of another process."""

    def __init__(self, database: Database, cluster: KubernetesCluster) -> None:
        self.server = VllmServer()
        super().__init__(
            database,
            model_server=self.server,
            engine_command=[sys.executable, SCRIPTED],
            engine_args=["--start-delay", "1"],
            ready_timeout_s=600,
        )
        self.deployments = deployments_of(self, cluster)
        self.elsewhere = deployments_of(self, cluster)
        self.elsewhere.note_reconciler(False)
        compute = compute_of(self, cluster=cluster)
        self.reconciler = reconciler_of(self, self._give_up, compute)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        raise AssertionError(f"{submission_id} was given up: {lines}")

    async def deploy(self) -> None:
        """With one replica, as the pipeline does."""
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        deployment = Deployment(ID, 1, "a" * 64, 1_096)
        await self.deployments.wish(deployment)
        await self.deployments.servers.apply(deployment)
        endpoint: list[str] = []

        async def answers() -> bool:
            endpoint[:] = (await self.deployments.servers.look(ID)).endpoints
            return bool(endpoint)

        await eventually(answers)
        await self.deployments.mark_ready(ID, endpoint[0])

    async def reconciled(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Look after look, until it is so."""

        async def look() -> bool:
            await self.reconciler.reconcile()
            return await holds()

        await eventually(look)

    async def endpoints(self) -> tuple[str, ...]:
        """Return what a gateway of another process uses."""
        await self.elsewhere.refresh_endpoints()
        return self.elsewhere.replicas(ID)

    async def has(self, count: int) -> bool:
        return len(await self.endpoints()) == count

    async def answers_at(self, endpoint: str) -> bool:
        asked = Generation(ID, "Hello", GenerationParams())
        return bool([chunk async for chunk in self.server.generate(endpoint, asked)])


@pytest.fixture
async def world(database: Database, cluster: KubernetesCluster) -> AsyncIterator[Deployed]:
    world = Deployed(database, cluster)
    try:
        await world.deploy()
        yield world
    finally:
        await world.server.close()


async def test_scaling_gives_every_gateway_an_address_for_each_ready_pod(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deployments.note(ID, wanted_replicas=3)
    await world.reconciled(lambda: world.has(3))
    endpoints = await world.endpoints()
    assert set(endpoints) == set(map(address_of, kubernetes.kubelet.pods(NAME)))
    assert all(await asyncio.gather(*map(world.answers_at, endpoints)))
    await world.deployments.note(ID, wanted_replicas=1)
    await world.reconciled(lambda: world.has(1))


async def test_hanging_pod_alone_is_left_out_and_deleted(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deployments.note(ID, wanted_replicas=3)
    await world.reconciled(lambda: world.has(3))
    before = kubernetes.kubelet.pods(NAME)
    hanging = before[1]["metadata"]["name"]
    kubernetes.kubelet.unready.add(hanging)
    await world.reconciled(lambda: world.has(2))
    assert address_of(before[1]) not in await world.endpoints()
    await world.reconciled(lambda: world.has(3))
    after = {pod["metadata"]["name"] for pod in kubernetes.kubelet.pods(NAME)}
    assert {pod["metadata"]["name"] for pod in before} - after == {hanging}
    row = await world.deployments.find(ID)
    assert row is not None
    assert (row.phase, row.restarts) == (Phase.READY, 0)


async def test_only_pod_may_load_again_after_a_kubelet_restart(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    (pod,) = kubernetes.kubelet.pods(NAME)
    uid = pod["metadata"]["uid"]
    kubernetes.kubelet.back_off_s = 0
    died = kubernetes.kubelet.processes[uid]
    died.stop()

    async def runs_again() -> bool:
        return kubernetes.kubelet.processes.get(uid) not in (None, died)

    await eventually(runs_again)
    for _ in range(HANGS_AFTER + 1):
        await world.reconciler.reconcile()
    await world.reconciled(lambda: world.has(1))
    assert [found["metadata"]["uid"] for found in kubernetes.kubelet.pods(NAME)] == [uid]


async def test_a_server_starts_where_its_artifact_was_served_before(
    database: Database, kubernetes: FakeWorld
) -> None:
    options = replace(kubernetes.options(), cache_path="/models")
    cluster = KubernetesCluster(kubernetes.api(), options)
    await cluster.start()
    try:
        await cluster.apply_deployment(scripted())  # it takes the first machine
        await seen(cluster, lambda state: bool(ready(state)))
        world = Deployed(database, cluster)
        await world.deploy()
        await world.reconciler.reconcile()
        (machine,) = (pod["spec"]["nodeName"] for pod in kubernetes.kubelet.pods(NAME))
        assert machine == "node-2"
        for name in ("m-tiny", NAME):
            await cluster.delete(name)
        deployment = Deployment(ID, 1, "a" * 64, 1_096)
        await world.deployments.servers.apply(deployment)

        async def alive() -> list[str]:
            pods = kubernetes.kubelet.pods(NAME)
            return [
                str(pod["spec"]["nodeName"])
                for pod in pods
                if "deletionTimestamp" not in pod["metadata"] and "nodeName" in pod["spec"]
            ]

        assert await until(alive) == ["node-2"]
        await world.deployments.machines.note("a" * 64, ["node-1"])
        await world.deployments.servers.apply(deployment)
        again = kubernetes.server.store.get(("deployments", "models", NAME))
        assert near_of(again["spec"]["template"]["spec"]) == ("node-2",), "nothing restarts"

        before = deepcopy(again)  # as the version before applies it, which knows no preference
        for field in ("resourceVersion", "uid"):
            before["metadata"].pop(field, None)
        del before["spec"]["template"]["spec"]["affinity"]
        await kubernetes.api().apply(before)
        kept = kubernetes.server.store.get(("deployments", "models", NAME))
        assert near_of(kept["spec"]["template"]["spec"]) == ("node-2",), "nothing restarts"
    finally:
        await world.server.close()
        await cluster.close()
