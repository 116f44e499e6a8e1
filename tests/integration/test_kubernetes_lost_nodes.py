"""A cluster under real conditions: nodes that are lost or full, pods that use their grace, clocks in other zones."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState, Trouble
from guanaco_server.clusters.kubernetes import status as problems
from guanaco_server.clusters.kubernetes.api import DEPLOYMENT, KubernetesApi, connect
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.jobs import LATE_S
from guanaco_server.clusters.kubernetes.logs import LogReader
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import Deployment
from guanaco_server.deployments.specs import deployment_name
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.deployments.vllm_server import VllmServer
from tests.fixtures.fake_kubernetes.server import TOKEN
from tests.fixtures.kubernetes import (
    SCRIPTED,
    FakeWorld,
    Lines,
    fake_world,
    job,
    scripted,
    seen,
    shell,
    until,
)
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


async def served_on_a_lost_node(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> tuple[ReplicaState, str]:
    """Start a server and lose its node. Return how it was before, and the node."""
    await cluster.apply_deployment(scripted())
    before = await seen(cluster, lambda state: state.is_ready)
    lost = kubernetes.kubelet.node_of("m-tiny")
    kubernetes.kubelet.lose_node(lost)
    return before, lost


async def begun(lines: Lines) -> bool:
    return bool(lines)


async def test_a_lost_nodes_server_is_told_and_replaced_elsewhere(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    spec = scripted()
    before, lost = await served_on_a_lost_node(cluster, kubernetes)
    state = await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    assert state.trouble is Trouble.NODE_LOST
    assert state.problem == f"Its machine {lost} is lost: the cluster hears nothing of it."
    assert (await cluster.logs("m-tiny"))[0] == [], "its kubelet cannot be asked"
    await cluster.apply_deployment(spec)
    after = await seen(cluster, lambda state: state.is_ready)
    assert after.endpoint != before.endpoint
    assert kubernetes.kubelet.node_of("m-tiny") != lost


async def test_a_lost_nodes_pods_are_evicted_in_seconds_without_the_platform(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    _, lost = await served_on_a_lost_node(cluster, kubernetes)

    async def has_another() -> bool:
        return len(kubernetes.kubelet.pods("m-tiny")) == 2

    await until(has_another)
    await seen(cluster, lambda state: state.is_ready)
    assert kubernetes.kubelet.node_of("m-tiny") != lost


async def test_a_server_on_a_lost_node_is_deleted_and_its_name_is_free_at_once(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    _, lost = await served_on_a_lost_node(cluster, kubernetes)
    await cluster.delete("m-tiny")
    assert await cluster.observe("m-tiny") is None
    assert await cluster.list_deployments() == []
    await cluster.apply_deployment(scripted())
    await seen(cluster, lambda state: state.is_ready)
    assert len(kubernetes.kubelet.pods("m-tiny")) == 2, "nobody confirms that the old one ended"
    kubernetes.kubelet.return_node(lost)

    async def is_gone() -> bool:
        return len(kubernetes.kubelet.pods("m-tiny")) == 1

    await until(is_gone)


async def test_a_server_that_uses_its_grace_delays_neither_its_end_nor_its_name(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.stop_s["m-tiny"] = 600
    await cluster.apply_deployment(scripted())
    before = await seen(cluster, lambda state: state.is_ready)
    await cluster.delete("m-tiny")
    await cluster.apply_deployment(scripted())
    after = await seen(cluster, lambda state: state.is_ready)
    assert after.endpoint != before.endpoint


async def test_a_server_for_which_there_is_no_machine_has_not_crashed(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.no_room[""] = NO_ROOM
    await cluster.apply_deployment(scripted())
    state = await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    assert (state.trouble, state.exit_code) == (Trouble.UNPLACED, None)
    (waiting,) = kubernetes.kubelet.pods("m-tiny")
    await cluster.apply_deployment(scripted())
    assert [pod["metadata"]["uid"] for pod in kubernetes.kubelet.pods("m-tiny")] == [
        waiting["metadata"]["uid"]
    ], "it keeps its place in the scheduler's queue"
    kubernetes.kubelet.no_room.clear()
    await seen(cluster, lambda state: state.is_ready)


async def test_no_line_is_lost_or_repeated_on_a_node_east_of_utc(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.server.store.zone = timezone(timedelta(hours=2))
    lines = Lines()
    script = "for i in $(seq 40); do echo line $i; sleep 0.03; done"
    running = asyncio.create_task(cluster.run_job(job(script), lines.take))
    while not running.done():
        await asyncio.sleep(0.3)
        kubernetes.server.faults.cut_streams()
    await running
    assert lines == [f"line {number}" for number in range(1, 41)]
    await cluster.apply_deployment(shell("m-tiny", "echo begun; sleep 2; echo ERROR; exit 7"))
    await seen(cluster, lambda state: state.phase is ReplicaPhase.RUNNING)

    async def said(line: str) -> bool:
        return line in (await cluster.logs("m-tiny"))[0]

    await until(lambda: said("begun"))
    await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    assert (await cluster.logs("m-tiny"))[0] == ["begun", "ERROR"]


@pytest.mark.parametrize("hours", [-7, 0, 2, 5.5])
async def test_a_log_is_read_on_from_where_one_was_in_any_zone(
    cluster: KubernetesCluster, kubernetes: FakeWorld, hours: float
) -> None:
    kubernetes.server.store.zone = timezone(timedelta(hours=hours))
    await cluster.apply_deployment(shell("m-tiny", "echo one; sleep 600"))

    async def has_pod() -> bool:
        return bool(kubernetes.server.store.logs)

    await until(has_pod)
    (pod,) = kubernetes.kubelet.pods("m-tiny")
    reader = LogReader(kubernetes.api(), pod)

    async def first() -> list[str]:
        return await reader.rest()

    assert await until(first) == ["one"]
    kubernetes.server.store.say(pod["metadata"]["uid"], "two")
    assert await reader.rest() == ["two"]
    assert await reader.rest() == []


async def test_a_job_on_a_lost_node_goes_on_in_another_pod(
    cluster: KubernetesCluster, kubernetes: FakeWorld, tmp_path: Path
) -> None:
    lines, done = Lines(), tmp_path / "half"
    script = f"if [ -e {done} ]; then echo second; else touch {done}; echo first; sleep 600; fi"
    running = asyncio.create_task(cluster.run_job(job(script), lines.take))
    await until(lambda: begun(lines))
    kubernetes.kubelet.lose_node(kubernetes.kubelet.node_of("s-job"))
    result = await running
    assert (result.exit_code, result.problem, lines) == (0, None, ["first", "second"])


async def test_a_job_that_is_cancelled_on_a_lost_node_is_not_waited_for(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    lines = Lines()
    running = asyncio.create_task(cluster.run_job(job("echo begun; sleep 600"), lines.take))
    await until(lambda: begun(lines))
    kubernetes.kubelet.lose_node(kubernetes.kubelet.node_of("s-job"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "jobs/s-job" not in kubernetes.left()


async def test_a_pod_that_waited_for_its_machine_may_fail_to_pull_for_a_while(
    cluster: KubernetesCluster, kubernetes: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "IMAGE_S", 1.5)
    kubernetes.kubelet.no_room["s-job"] = NO_ROOM
    running = asyncio.create_task(cluster.run_job(job("echo done"), Lines().take))
    await asyncio.sleep(2)
    kubernetes.kubelet.no_image.add("s-job")
    kubernetes.kubelet.no_room.clear()

    async def cannot_pull() -> bool:
        return "ErrImagePull" in str(kubernetes.kubelet.pods("s-job"))

    await until(cannot_pull)
    kubernetes.kubelet.no_image.clear()
    assert (await running).exit_code == 0


async def test_a_limit_holds_for_a_job_on_a_lost_node(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    lines = Lines()
    work = job("echo begun; sleep 600", timeout_s=4)
    running = asyncio.create_task(cluster.run_job(work, lines.take))
    await until(lambda: begun(lines))
    for node in kubernetes.kubelet.nodes:
        kubernetes.kubelet.lose_node(node)
    async with asyncio.timeout(4 + LATE_S):
        with pytest.raises(TimeoutError):
            await running
    assert "jobs/s-job" not in kubernetes.left()


async def test_a_changed_spec_comes_where_there_is_no_room_for_two(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.capacity = 1
    await cluster.apply_deployment(scripted())
    before = await seen(cluster, lambda state: state.is_ready)
    await cluster.apply_deployment(scripted("m-tiny", "--name", "other"))
    after = await seen(cluster, lambda state: state.is_ready)
    assert after.endpoint != before.endpoint
    await cluster.apply_deployment(scripted("m-tiny", "--name", "other"))
    found = kubernetes.server.store.get(("deployments", "models", "m-tiny"))
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


async def test_nothing_runs_before_its_secret_and_its_network_policy_are_there(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    server = kubernetes.server
    server.faults.answer(500, only="secrets")
    working = [
        asyncio.create_task(cluster.apply_deployment(scripted())),
        asyncio.create_task(cluster.run_job(job("echo done"), Lines().take)),
    ]

    async def is_refused() -> bool:
        return len(server.faults.refused) > 2

    await until(is_refused)
    assert server.store.all("pods") == []
    server.faults.end()
    await asyncio.gather(*working)
    assert "CreateContainerConfigError" not in str(server.store.history)


async def test_a_secret_that_is_renewed_restarts_nothing(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    await cluster.apply_deployment(scripted(secrets={"TOKEN": "old"}))
    before = await seen(cluster, lambda state: state.is_ready)
    await cluster.renew_secrets(scripted(secrets={"TOKEN": "new"}, replicas=3))
    secret = kubernetes.server.store.get(("secrets", "models", "m-tiny"))
    assert secret["data"] == {"TOKEN": "bmV3"}
    after = await cluster.observe("m-tiny")
    assert after == before


async def test_while_watches_are_slow_what_this_process_did_is_known(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.server.faults.watch_delay_s = 2
    await cluster.apply_deployment(scripted())
    assert await cluster.list_deployments() == ["m-tiny"]
    await cluster.delete("m-tiny")
    assert await cluster.observe("m-tiny") is None
    assert await cluster.list_deployments() == []


async def test_an_api_that_is_busy_is_left_alone_for_as_long_as_it_asks(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.server.faults.answer(429, times=1, only="PATCH", retry_after_s=2)
    began = time.monotonic()
    await cluster.apply_deployment(scripted())
    assert time.monotonic() - began >= 2


@pytest.mark.parametrize(
    "refusal",
    [
        'pods "m-tiny-1" is forbidden: exceeded quota: models, requested: pods=1',
        'admission webhook "policy.example.com" denied the request: no owner label',
        'pods "m-tiny-1" is forbidden: violates PodSecurity "restricted:latest"',
    ],
)
async def test_what_quota_or_admission_refuses_waits_and_comes_back(
    cluster: KubernetesCluster, kubernetes: FakeWorld, refusal: str
) -> None:
    kubernetes.kubelet.no_quota["m-tiny"] = refusal
    await cluster.apply_deployment(scripted())
    state = await seen(cluster, lambda state: state.problem is not None)
    assert state.trouble is Trouble.UNPLACED
    kubernetes.kubelet.no_quota.clear()
    await seen(cluster, lambda state: state.is_ready)


async def test_a_token_file_that_ends_with_a_line_break_does(kubernetes: FakeWorld) -> None:
    kubeconfig = kubernetes.server.write_kubeconfig(
        kubernetes.folder / "newline", token=f"{TOKEN}\n"
    )
    api = KubernetesApi(connect("fake", str(kubeconfig)), "models", patience_s=1)
    assert (await api.list(DEPLOYMENT))["items"] == []


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

    async def deploy(self, *submission_ids: str) -> None:
        ada = await self.account(Role.DEVELOPER, "ada")
        for submission_id in submission_ids:
            await self.publish(ada, submission_id)
            deployment = Deployment(submission_id, 1, "a" * 64, 1_096)
            await self.deployments.wish(deployment)
            await self.deployments.apply(deployment)
        for submission_id in submission_ids:
            await eventually(partial(self._answers, submission_id))
            (endpoint,) = (await self.deployments.look(submission_id)).endpoints
            await self.deployments.mark_ready(submission_id, endpoint)

    async def _answers(self, submission_id: str) -> bool:
        return bool((await self.deployments.look(submission_id)).endpoints)

    async def row(self, submission_id: str) -> DeploymentRow:
        row = await self.deployments.find(submission_id)
        assert row is not None
        return row

    async def is_served(self, submission_id: str, *, but_not_at: object = None) -> bool:
        endpoints = self.deployments.replicas(submission_id)
        return bool(endpoints) and endpoints != but_not_at

    async def is_unserved(self, submission_id: str) -> bool:
        return not self.deployments.replicas(submission_id)


ONE, TWO, THREE = "acme-one_v1", "acme-two_v1", "acme-three_v1"


@pytest.fixture
async def world(database: Database, cluster: KubernetesCluster) -> AsyncIterator[Deployed]:
    world = Deployed(database, cluster)
    try:
        yield world
    finally:
        await world.reconciler.stop()
        await world.server.close()


async def test_what_the_cluster_does_to_servers_is_repaired_and_counted_against_nobody(
    world: Deployed, kubernetes: FakeWorld, cluster: KubernetesCluster
) -> None:
    """A lost node, a deleted Deployment and an eviction at once; another server dies meanwhile, and is seen to at once."""
    await world.deploy(ONE, TWO, THREE)
    await world.reconciler.start()
    before = {one: world.deployments.replicas(one) for one in (ONE, TWO, THREE)}
    lost = kubernetes.kubelet.node_of(deployment_name(ONE))
    kubernetes.kubelet.stop_s[deployment_name(TWO)] = 600
    kubernetes.kubelet.lose_node(lost)
    store = kubernetes.server.store
    with contextlib.suppress(Exception):
        store.delete(("deployments", "models", deployment_name(TWO)), "Foreground")
    kubernetes.kubelet.evict(deployment_name(THREE))
    for one in (ONE, TWO, THREE):
        await eventually(partial(world.is_served, one, but_not_at=before[one]))
        row = await world.row(one)
        assert (row.phase, row.restarts) == (Phase.READY, 0)
        assert kubernetes.kubelet.node_of(deployment_name(one)) != lost
    assert world.given_up == []


async def test_a_published_server_without_a_machine_waits_and_comes_back_by_itself(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deploy(ONE)
    await world.reconciler.start()
    kubernetes.kubelet.no_room[""] = NO_ROOM
    kubernetes.kubelet.evict(deployment_name(ONE))
    await eventually(lambda: world.is_unserved(ONE))

    async def is_final() -> bool:
        return (await world.deployments.look(ONE)).trouble is Trouble.UNPLACED

    await eventually(is_final)

    async def is_told() -> bool:
        return (await world.row(ONE)).trouble == "unplaced"

    await eventually(is_told)
    ada = await world.account(Role.DEVELOPER, "ada")
    unserved = (await world.submissions.require_visible(ada, ONE)).unserved
    assert unserved is not None
    assert unserved.problem.startswith("No machine can take it: 0/3 nodes are available")
    counted = await world.deployments.count_unserved()
    assert {kind for kind, count in counted.items() if count} == {"unplaced"}
    await asyncio.sleep(kubernetes.options().pending_s + 1)
    assert world.given_up == []
    assert (await world.row(ONE)).restarts == 0
    kubernetes.kubelet.no_room.clear()
    await eventually(lambda: world.is_served(ONE))
    assert (await world.submissions.require_visible(ada, ONE)).unserved is None


async def test_a_deleted_secret_is_healed_without_a_restart(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deploy(ONE)
    await world.reconciler.start()
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


def test_pods_tolerate_a_lost_node_for_seconds(kubernetes: FakeWorld) -> None:
    from guanaco_server.clusters.kubernetes.manifests import deployment_object, job_object

    for manifest in (
        deployment_object(scripted(), replace(kubernetes.options())),
        job_object(job("true"), kubernetes.options()),
    ):
        tolerations = manifest["spec"]["template"]["spec"]["tolerations"]
        seconds = {one["key"].rpartition("/")[2]: one["tolerationSeconds"] for one in tolerations}
        assert seconds == {"unreachable": 5, "not-ready": 30}
