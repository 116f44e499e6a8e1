"""A cluster under real conditions: nodes that are lost or full, pods that use their grace, clocks in other zones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from guanaco.errors import ClusterUnreachable
from guanaco_server.clusters.cluster import ReplicaPhase, ReplicaState, Trouble
from guanaco_server.clusters.kubernetes import status as problems
from guanaco_server.clusters.kubernetes.api.client import DEPLOYMENT, KubernetesApi, connect
from guanaco_server.clusters.kubernetes.api.logs import LogReader
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.jobs import LATE_S
from guanaco_server.clusters.kubernetes.manifests import objects
from tests.fixtures.fake_kubernetes.server import TOKEN
from tests.fixtures.kubernetes import (
    FakeWorld,
    Lines,
    LinesAcrossCuts,
    fake_world,
    job,
    scripted,
    seen,
    shell,
    until,
)

pytestmark = pytest.mark.slow

NO_ROOM = "0/3 nodes are available: 3 node(s) were unschedulable."


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
def soon_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says nothing is given up after 2 s instead of 20; that it is given up is what is tested."""
    monkeypatch.setattr(objects, "JOB_STOP_S", 1)
    monkeypatch.setattr(problems, "LOST_SLACK_S", 1.0)


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


async def test_pods_of_a_lost_node_are_evicted_without_the_platform(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    _, lost = await served_on_a_lost_node(cluster, kubernetes)

    async def has_another() -> bool:
        return len(kubernetes.kubelet.pods("m-tiny")) == 2

    await until(has_another)
    await seen(cluster, lambda state: state.is_ready)
    assert kubernetes.kubelet.node_of("m-tiny") != lost


async def test_server_on_a_lost_node_is_deleted_freeing_its_name(
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


async def test_server_using_its_grace_delays_neither_end_nor_name(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.stop_s["m-tiny"] = 600
    await cluster.apply_deployment(scripted())
    before = await seen(cluster, lambda state: state.is_ready)
    await cluster.delete("m-tiny")
    await cluster.apply_deployment(scripted())
    after = await seen(cluster, lambda state: state.is_ready)
    assert after.endpoint != before.endpoint


async def test_server_without_a_machine_has_not_crashed(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    cluster._options = replace(cluster._options, pending_s=0)
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


async def test_no_log_line_is_lost_east_of_utc(
    cluster: KubernetesCluster, kubernetes: FakeWorld, tmp_path: Path
) -> None:
    kubernetes.server.store.zone = timezone(timedelta(hours=2))
    lines = LinesAcrossCuts(kubernetes, 30)
    await cluster.run_job(job(lines.script), lines.take)
    assert lines == lines.all
    end = tmp_path / "end"
    dying = f"echo begun; until [ -e {end} ]; do sleep 0.02; done; echo ERROR; exit 7"
    await cluster.apply_deployment(shell("m-tiny", dying))
    await seen(cluster, lambda state: state.phase is ReplicaPhase.RUNNING)

    async def said(line: str) -> bool:
        return line in (await cluster.logs("m-tiny"))[0]

    await until(lambda: said("begun"))
    end.touch()
    await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    assert (await cluster.logs("m-tiny"))[0] == ["begun", "ERROR"]


async def test_starting_servers_log_is_not_read_at_every_look(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    """A stage looks every 0.25 s; only what has ended is asked at once."""
    await cluster.apply_deployment(shell("m-tiny", "echo begun; sleep 600"))

    async def said() -> bool:
        return (await cluster.logs("m-tiny"))[0] == ["begun"]

    await until(said)
    _, offset = await cluster.logs("m-tiny")
    asked = len([one for one in kubernetes.server.requests if one.endswith("/log")])
    for _ in range(20):
        cluster._read_at["m-tiny"] = time.monotonic()  # no time passes
        assert await cluster.logs("m-tiny", offset) == ([], offset)
    assert len([one for one in kubernetes.server.requests if one.endswith("/log")]) == asked


@pytest.mark.parametrize("hours", [-7, 0, 2, 5.5])
async def test_log_is_resumed_from_its_position_in_any_zone(
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


@pytest.mark.usefixtures("soon_lost")
async def test_job_on_a_lost_node_continues_in_another_pod(
    cluster: KubernetesCluster, kubernetes: FakeWorld, tmp_path: Path
) -> None:
    lines, done = Lines(), tmp_path / "half"
    script = f"if [ -e {done} ]; then echo second; else touch {done}; echo first; sleep 600; fi"
    running = asyncio.create_task(cluster.run_job(job(script), lines.take))
    await until(lambda: begun(lines))
    kubernetes.kubelet.lose_node(kubernetes.kubelet.node_of("s-job"))
    result = await running
    assert (result.exit_code, result.problem, lines) == (0, None, ["first", "second"])


@pytest.mark.usefixtures("soon_lost")
async def test_cancelled_job_on_a_lost_node_is_not_waited_for(
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


async def test_pod_that_waited_for_a_machine_may_retry_its_image(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    cluster._options = replace(cluster._options, pending_s=7_200)
    kubernetes.kubelet.no_room["s-job"] = NO_ROOM
    running = asyncio.create_task(cluster.run_job(job("echo done"), Lines().take))

    async def waits() -> bool:
        return "Unschedulable" in str(kubernetes.kubelet.pods("s-job"))

    await until(waits)
    with kubernetes.kubelet.paused():
        (pod,) = kubernetes.kubelet.pods("s-job")
        key = ("pods", "models", pod["metadata"]["name"])
        kubernetes.server.store.age(key, timedelta(seconds=60 * problems.IMAGE_S))
        kubernetes.kubelet.no_image.add("s-job")
        kubernetes.kubelet.no_room.clear()

    async def is_seen() -> bool:
        return "ErrImagePull" in str(cluster._informers.pods("s-job"))

    await until(is_seen)
    kubernetes.kubelet.no_image.clear()
    assert (await running).exit_code == 0


@pytest.mark.usefixtures("soon_lost")
async def test_a_limit_holds_for_a_job_on_a_lost_node(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    cluster._options = replace(cluster._options, pending_s=600)  # not for want of a machine
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


async def test_changed_spec_replaces_where_there_is_no_room_for_two(
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


async def test_nothing_runs_before_its_secret_and_network_policy_exist(
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


async def test_busy_api_is_left_alone_as_long_as_it_asks(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    """It asks for longer than anybody waits: the second try, which would succeed, is never made."""
    kubernetes.server.faults.answer(429, times=1, only="PATCH", retry_after_s=3_600)
    with pytest.raises(ClusterUnreachable):
        await cluster.apply_deployment(scripted())
    assert len([one for one in kubernetes.server.requests if one.startswith("PATCH")]) == 1


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


def test_pods_tolerate_a_lost_node_for_seconds(kubernetes: FakeWorld) -> None:
    from guanaco_server.clusters.kubernetes.manifests.objects import deployment_object, job_object

    for manifest in (
        deployment_object(scripted(), replace(kubernetes.options())),
        job_object(job("true"), kubernetes.options()),
    ):
        tolerations = manifest["spec"]["template"]["spec"]["tolerations"]
        seconds = {one["key"].rpartition("/")[2]: one["tolerationSeconds"] for one in tolerations}
        assert seconds == {"unreachable": 5, "not-ready": 30}
