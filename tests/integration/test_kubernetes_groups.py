"""Models over several machines: a LeaderWorkerSet of the fake cluster, in which one group of pods is one replica."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    ReplicaPhase,
    ReplicaState,
    Resources,
    Trouble,
)
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from tests.fixtures.fake_kubernetes import statuses
from tests.fixtures.kubernetes import FakeWorld, fake_world, scripted, seen, until

pytestmark = pytest.mark.slow

NODES = ("--nnodes", "2", "--node-rank", "{rank}", "--master-addr", "{leader}")
OVER_TWO = scripted("m-tiny", *NODES, resources=Resources(nodes=2))


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        world.kubelet.nodes = ["node-1", "node-2", "node-3"]
        yield world


@pytest.fixture
async def cluster(kubernetes: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with kubernetes.cluster(patience_s=60, timeout_s=30) as cluster:
        yield cluster


async def served(cluster: KubernetesCluster, replicas: int = 1) -> ReplicaState:
    return await seen(
        cluster,
        lambda state: [one.is_ready for one in state.replicas] == [True] * replicas,
    )


def names(kubernetes: FakeWorld) -> dict[str, str]:
    """Return the uid of each pod by its name."""
    found = kubernetes.kubelet.pods("m-tiny")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def node_of(kubernetes: FakeWorld, pod: str) -> str:
    found: Any = kubernetes.server.store.get(("pods", "models", pod))
    return str(found["spec"]["nodeName"])


async def node_of_ready(kubernetes: FakeWorld, pod: str) -> str:
    """Return the pod's node once the pod is ready: one that never was does not show that its node is lost."""

    async def is_ready() -> bool:
        return statuses.is_ready(kubernetes.server.store.get(("pods", "models", pod)))

    await until(is_ready)
    return node_of(kubernetes, pod)


async def test_one_group_is_one_replica_and_its_leader_the_endpoint(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    await cluster.apply_deployment(replace(OVER_TWO, replicas=2))
    state = await served(cluster, replicas=2)
    assert set(names(kubernetes)) == {"m-tiny-0", "m-tiny-0-1", "m-tiny-1", "m-tiny-1-1"}
    leaders = [kubernetes.server.store.get(("pods", "models", f"m-tiny-{n}")) for n in (0, 1)]
    assert {one.endpoint for one in state.replicas} == {
        f"http://{pod['status']['podIP']}:8000" for pod in leaders
    }
    assert await cluster.list_deployments() == ["m-tiny"]
    await cluster.apply_deployment(OVER_TWO)
    assert (await served(cluster)).is_settled
    await cluster.delete("m-tiny")
    assert await cluster.observe("m-tiny") is None

    async def is_empty() -> bool:
        return kubernetes.left() == []

    await until(is_empty)


@pytest.mark.parametrize("pod", ["m-tiny-0", "m-tiny-0-1"])
async def test_group_restarts_as_a_whole_and_alone(
    cluster: KubernetesCluster, kubernetes: FakeWorld, pod: str
) -> None:
    await cluster.apply_deployment(replace(OVER_TWO, replicas=2))
    await served(cluster, replicas=2)
    before = names(kubernetes)
    kubernetes.server.store.delete(("pods", "models", pod))

    async def is_new() -> bool:
        after = names(kubernetes)
        return after.keys() == before.keys() and not any(
            after[name] == before[name] for name in ("m-tiny-0", "m-tiny-0-1")
        )

    await until(is_new)
    await served(cluster, replicas=2)
    assert names(kubernetes)["m-tiny-1"] == before["m-tiny-1"]
    assert names(kubernetes)["m-tiny-1-1"] == before["m-tiny-1-1"]


@pytest.mark.parametrize("pod", ["m-tiny-0", "m-tiny-0-1"])
async def test_a_group_of_a_lost_machine_is_served_elsewhere(
    cluster: KubernetesCluster, kubernetes: FakeWorld, pod: str
) -> None:
    """The lost pod keeps its name until it is deleted by force, and its group would wait for it for ever."""
    kubernetes.kubelet.haste = 1_000  # the cluster itself evicts nothing meanwhile
    await cluster.apply_deployment(OVER_TWO)
    await served(cluster)
    lost = await node_of_ready(kubernetes, pod)
    kubernetes.kubelet.lose_node(lost)
    state = await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    assert (state.trouble, state.is_settled) == (Trouble.NODE_LOST, False)
    await cluster.apply_deployment(OVER_TWO)
    await served(cluster)
    assert lost not in {node_of(kubernetes, name) for name in names(kubernetes)}


async def test_group_evicted_from_a_lost_machine_is_reported_and_freed(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.haste = 0
    await cluster.apply_deployment(OVER_TWO)
    await served(cluster)
    lost = await node_of_ready(kubernetes, "m-tiny-0-1")
    kubernetes.kubelet.lose_node(lost)

    async def is_leaving() -> bool:
        found = kubernetes.server.store.get(("pods", "models", "m-tiny-0-1"))
        return "deletionTimestamp" in found["metadata"]

    await until(is_leaving)
    state = await seen(cluster, lambda state: state.trouble is Trouble.NODE_LOST)
    assert state.problem == f"Its machine {lost} is lost: the cluster hears nothing of it."
    await cluster.apply_deployment(OVER_TWO)
    await served(cluster)


async def test_group_without_a_machine_for_one_pod_is_unplaced(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    kubernetes.kubelet.capacity = 1
    await cluster.apply_deployment(OVER_TWO)
    state = await seen(cluster, lambda state: state.trouble is Trouble.UNPLACED)
    assert state.problem is not None
    assert state.problem.startswith("No machine can take it: ")
    kubernetes.kubelet.capacity = None
    await served(cluster)


async def test_group_refused_by_quota_says_so_and_starts_later(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    refusal = 'pods "m-tiny-0" is forbidden: exceeded quota: models, requested: pods=1'
    kubernetes.kubelet.no_quota["m-tiny"] = refusal
    await cluster.apply_deployment(OVER_TWO)
    state = await seen(cluster, lambda state: state.trouble is Trouble.UNPLACED)
    assert (
        state.problem
        == "The cluster's quota does not allow it: exceeded quota: models, requested: pods=1."
    )
    kubernetes.kubelet.no_quota.clear()
    await served(cluster)


async def test_a_crash_of_one_pod_is_the_groups(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    spec = DeploymentSpec(
        "m-tiny",
        ("sh", "-c", 'if [ "$0" = 1 ]; then echo rank $0 dies; exit 7; fi; sleep 600', "{rank}"),
        resources=Resources(nodes=2),
    )
    await cluster.apply_deployment(spec)
    said: list[str] = []

    async def has_died() -> bool:
        state = await cluster.observe("m-tiny")
        lines, _ = await cluster.logs("m-tiny")
        said.extend(lines)
        return state is not None and state.exit_code == 7

    with kubernetes.kubelet.group_restarts_paused():
        await until(has_died)
        await until(lambda: _said(cluster, "rank 1 dies"))


async def _said(cluster: KubernetesCluster, line: str) -> bool:
    return line in (await cluster.logs("m-tiny"))[0]


async def test_model_that_needs_more_machines_gets_a_group(
    cluster: KubernetesCluster, kubernetes: FakeWorld
) -> None:
    for spec, kind in ((scripted(), "deployments"), (OVER_TWO, "leaderworkersets")) * 2:
        await cluster.apply_deployment(spec)
        await served(cluster)
        held = [one for one in kubernetes.left() if one.endswith("s/m-tiny")]
        assert f"{kind}/m-tiny" in held
        assert len({"deployments/m-tiny", "leaderworkersets/m-tiny"} & set(held)) == 1


@pytest.mark.parametrize("is_installed", [False, True])
async def test_a_cluster_without_groups_refuses_them_in_one_sentence(
    kubernetes: FakeWorld, is_installed: bool
) -> None:
    """Either nobody has installed it, or the platform has no right to it."""
    if is_installed:
        everything = {
            (kind, verb)
            for kind in ("deployments", "jobs", "pods", "events")
            for verb in ("list", "watch")
        }
        kubernetes.server.role = everything
    else:
        kubernetes.server.missing.add("leaderworkersets")
    async with kubernetes.cluster() as cluster:
        with pytest.raises(ClusterRefused, match="cannot serve a model over 2 machines"):
            await cluster.apply_deployment(OVER_TWO)
    if not is_installed:
        async with kubernetes.cluster() as cluster:
            await cluster.apply_deployment(scripted())
            await served(cluster)
