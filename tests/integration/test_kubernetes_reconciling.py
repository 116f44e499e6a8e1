"""Submissions whose servers are pods of the fake cluster, and the reconciler that keeps them served."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.clusters.cluster import Trouble
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.tables import DeploymentRow, Phase
from tests.fixtures.kubernetes import SCRIPTED, FakeWorld, fake_world
from tests.fixtures.reconciling import compute_of, deployments_of, reconciler_of
from tests.fixtures.world import World, eventually

pytestmark = pytest.mark.slow

NO_ROOM = "0/3 nodes are available: 3 node(s) were unschedulable."


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(kubernetes: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with kubernetes.cluster(patience_s=60, timeout_s=30) as cluster:
        yield cluster


class Deployed(World):
    """Submissions whose servers are pods, and their reconciler, which allows no restart."""

    def __init__(self, database: Database, cluster: KubernetesCluster) -> None:
        self.server = VllmServer()
        super().__init__(
            database,
            model_server=self.server,
            engine_command=[sys.executable, SCRIPTED],
            engine_args=[],
            ready_timeout_s=600,
        )
        self.given_up: list[str] = []
        self.deployments = deployments_of(self, cluster)
        compute = compute_of(self, cluster=cluster)
        self.reconciler = reconciler_of(self, self._give_up, compute, restart_limit=0)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        self.given_up.append(submission_id)

    async def deploy(self, *submission_ids: str, is_private: bool = True) -> None:
        """All have the same artifact, and each a server of its own unless they are not private."""
        ada = await self.account(Role.DEVELOPER, "ada")
        for submission_id in submission_ids:
            await self.publish(ada, submission_id)
            wanted = Deployment(submission_id, 1, "a" * 64, 1_096, is_private=is_private)
            await self.deployments.servers.apply(await self.deployments.wish(wanted))
        for submission_id in submission_ids:
            server = (await self.row(submission_id)).server_key
            await eventually(partial(self._answers, server))
            (endpoint,) = (await self.deployments.servers.look(server)).endpoints
            await self.deployments.mark_ready(submission_id, endpoint)

    async def _answers(self, server: str) -> bool:
        return bool((await self.deployments.servers.look(server)).endpoints)

    async def row(self, submission_id: str) -> DeploymentRow:
        row = await self.deployments.find(submission_id)
        assert row is not None
        return row

    async def is_served(self, submission_id: str, *, but_not_at: object = None) -> bool:
        endpoints = self.deployments.replicas(submission_id)
        return bool(endpoints) and endpoints != but_not_at

    async def is_unserved(self, submission_id: str) -> bool:
        return not self.deployments.replicas(submission_id)


ONE, TWO, THREE, FOUR = "acme-one_v1", "acme-two_v1", "acme-three_v1", "acme-four_v1"


@pytest.fixture
async def world(database: Database, cluster: KubernetesCluster) -> AsyncIterator[Deployed]:
    world = Deployed(database, cluster)
    try:
        yield world
    finally:
        await world.reconciler.stop()
        await world.server.close()


async def test_cluster_disruptions_are_repaired_and_counted_against_nobody(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    """All at once: a node is lost, a server uses its whole grace, an image cannot be pulled. No server delays another."""
    await world.deploy(ONE, TWO, THREE, FOUR)
    await world.reconciler.start()
    store, kubelet = kubernetes.server.store, kubernetes.kubelet
    before = {one: world.deployments.replicas(one) for one in (ONE, TWO, THREE, FOUR)}
    lost = kubelet.node_of(deployment_name(ONE))
    kubelet.no_image.add(deployment_name(FOUR))
    kubelet.evict(deployment_name(FOUR))
    kubelet.stop_s[deployment_name(TWO)] = 600
    kubelet.lose_node(lost)
    with contextlib.suppress(Exception):
        store.delete(("deployments", "models", deployment_name(TWO)), "Foreground")
    kubelet.evict(deployment_name(THREE))
    for one in (ONE, TWO, THREE):
        await eventually(partial(world.is_served, one, but_not_at=before[one]))
        row = await world.row(one)
        assert (row.phase, row.restarts) == (Phase.READY, 0)
        assert kubelet.node_of(deployment_name(one)) != lost

    async def is_told() -> bool:
        return (await world.row(FOUR)).trouble == Trouble.IMAGE_MISSING

    await eventually(is_told)
    assert not world.deployments.replicas(FOUR)
    kubelet.no_image.clear()
    await eventually(partial(world.is_served, FOUR, but_not_at=before[FOUR]))
    assert (await world.row(FOUR)).restarts == 0
    assert world.given_up == []


async def test_submissions_share_a_pod_until_the_last_is_withdrawn(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deploy(ONE, TWO, is_private=False)
    await world.reconciler.start()
    before = world.deployments.replicas(ONE)
    assert before == world.deployments.replicas(TWO)
    kubernetes.kubelet.evict(deployment_name(ONE))
    for one in (ONE, TWO):
        await eventually(partial(world.is_served, one, but_not_at=before))
    assert world.deployments.replicas(ONE) == world.deployments.replicas(TWO)
    async with world.database.write() as session:
        await world.deployments.withdraw(session, ONE)
    await world.reconciler.reconcile()
    assert await world.is_served(TWO)
    assert kubernetes.kubelet.node_of(deployment_name(ONE)), "the pod is still there"
    async with world.database.write() as session:
        await world.deployments.withdraw(session, TWO)
    key = ("deployments", "models", deployment_name(ONE))

    async def is_gone() -> bool:
        return key not in kubernetes.server.store.objects

    await eventually(is_gone)


async def test_server_in_a_queue_waits_and_is_not_at_fault(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.full_queues.add("autumn")
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ONE)
    deployment = Deployment(ONE, 1, "a" * 64, 1_096, queue="autumn")
    await world.deployments.wish(deployment)
    await world.deployments.servers.apply(deployment)
    await world.deployments.mark(ONE, Phase.READY)
    await world.reconciler.start()

    async def is_told() -> bool:
        return (await world.row(ONE)).trouble == Trouble.QUEUED

    await eventually(is_told)
    assert (await world.row(ONE)).problem == "It waits for a place in the queue autumn of Kueue."
    kubernetes.kubelet.full_queues.clear()
    await eventually(lambda: world.is_served(ONE))
    row = await world.row(ONE)
    assert (row.restarts, row.trouble, row.queue) == (0, None, "autumn")


async def test_published_server_without_a_machine_waits_and_returns(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deploy(ONE)
    await world.reconciler.start()
    kubernetes.kubelet.no_room[""] = NO_ROOM
    kubernetes.kubelet.evict(deployment_name(ONE))
    await eventually(lambda: world.is_unserved(ONE))

    async def is_final() -> bool:
        return (await world.deployments.servers.look(ONE)).trouble is Trouble.UNPLACED

    await eventually(is_final)

    async def is_told() -> bool:
        return (await world.row(ONE)).trouble == "unplaced"

    await eventually(is_told)
    ada = await world.account(Role.DEVELOPER, "ada")
    unserved = (await world.submissions.require_visible(ada, ONE)).unserved
    assert unserved is not None
    assert unserved.problem.startswith("No machine can take it: 0/3 nodes are available")
    counted = await world.overview.count_unserved()
    assert {kind for kind, count in counted.items() if count} == {"unplaced"}
    for _ in range(3):
        await world.reconciler.reconcile()
    assert world.given_up == []
    assert (await world.row(ONE)).restarts == 0
    kubernetes.kubelet.no_room.clear()
    await eventually(lambda: world.is_served(ONE))
    assert (await world.submissions.require_visible(ada, ONE)).unserved is None


async def test_a_deleted_secret_is_healed_without_a_restart(
    world: Deployed, kubernetes: FakeWorld, cluster: KubernetesCluster
) -> None:
    cluster._options = replace(cluster._options, pending_s=600)  # nor is it waited for that long
    await world.deploy(ONE)
    await world.reconciler.start()
    await (
        world.reconciler.reconcile()
    )  # the URLs are fresh now: their renewal does not bring it back
    before = world.deployments.replicas(ONE)
    store, name = kubernetes.server.store, deployment_name(ONE)
    (pod,) = kubernetes.kubelet.pods(name)
    with kubernetes.kubelet.paused():
        store.delete(("secrets", "models", name))
        store.delete(("pods", "models", pod["metadata"]["name"]))
    await eventually(partial(world.is_served, ONE, but_not_at=before))
    assert "CreateContainerConfigError" in str(store.history), "a pod has missed it"
    assert (await world.row(ONE)).restarts == 0


async def test_a_deployment_that_cannot_be_worked_on_delays_no_other(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    """The API answers nothing about one of them; another one is deleted by hand, and comes back."""
    await world.deploy(ONE, TWO)
    await world.reconciler.start()
    name = deployment_name(ONE)
    kubernetes.server.faults.answer(503, only=name)
    kubernetes.server.store.delete(("deployments", "models", name))
    await eventually(lambda: world.is_unserved(ONE))
    before = world.deployments.replicas(TWO)
    kubernetes.server.store.delete(("deployments", "models", deployment_name(TWO)))
    await eventually(lambda: world.is_served(TWO, but_not_at=before))
    assert not world.deployments.replicas(ONE)
    kubernetes.server.faults.end()
    await eventually(lambda: world.is_served(ONE))
