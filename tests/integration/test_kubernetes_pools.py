"""Warm pods on the fake Kubernetes: the keeper really runs in them, and the scripted engine is what they become."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase, Resources
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.options import PodPool
from guanaco_server.clusters.kubernetes.pools import pools
from guanaco_server.clusters.kubernetes.pools.control_port import OrderNotTaken, PoolPort
from tests.fixtures.fake_kubernetes import statuses
from tests.fixtures.fake_kubernetes.store import Json
from tests.fixtures.kubernetes import ROOT, FakeWorld, fake_world, scripted, seen, until
from tests.fixtures.pools import IMPORTS, pooled, spec, warm

pytestmark = pytest.mark.slow

KEY = "ab" * 16


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorld]:
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(world: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with pooled(world) as cluster:
        await warm(cluster)
        yield cluster


def waiting(world: FakeWorld) -> list[Json]:
    pods = world.server.store.all("pods")
    return [pod for pod in pods if "guanaco.dev/pool" in pod["metadata"]["labels"]]


def live(world: FakeWorld, name: str = "m-tiny") -> list[Json]:
    return [pod for pod in world.kubelet.pods(name) if "deletionTimestamp" not in pod["metadata"]]


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


async def model_at(endpoint: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{endpoint}/v1/models")
    return str(answer.json()["data"][0]["id"])


async def served(cluster: KubernetesCluster, name: str = "m-tiny") -> str:
    """The model's name, as the replica that the platform sees says it."""
    state = await seen(cluster, lambda state: bool(state.endpoint) and state.is_settled, name)
    return await model_at(state.endpoint)


def replicas(world: FakeWorld, name: str = "m-tiny") -> int:
    return int(world.server.store.get(("deployments", "models", name))["spec"]["replicas"])


async def test_server_claims_a_waiting_pod_and_the_pool_makes_another(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    before = uids(waiting(world))
    await cluster.apply_deployment(spec())
    assert await served(cluster) == "model-m-tiny"
    assert uids(world.kubelet.pods("m-tiny")) == before, "no pod was made for it"
    (again,) = await warm(cluster)
    assert again["metadata"]["uid"] not in before
    assert replicas(world) == 0
    assert await cluster.list_deployments() == ["m-tiny"], "a pool is no model server"
    await cluster.apply_deployment(spec())
    assert uids(live(world)) == before, "applying again changes nothing"


async def test_a_pool_whose_pods_are_all_claimed_counts_as_empty(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    (pool,) = await cluster.waiting_in_pools()
    assert await cluster.waiting_in_pools() == {pool: 1}
    assert not await cluster.has_room_ahead(spec()), "the last one is left for a submission"
    with world.kubelet.paused():  # the pool makes no other one meanwhile
        await cluster.apply_deployment(spec())
        assert await cluster.waiting_in_pools() == {pool: 0}
    await warm(cluster)
    assert await cluster.waiting_in_pools() == {pool: 1}


async def test_a_pool_grows_by_its_claims_and_shrinks_later(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def size() -> int:
        found = world.server.store.get(("deployments", "models", "guanaco-pool-small"))
        return int(found["spec"]["replicas"])

    async def is_size(wanted: int) -> bool:
        return await size() == wanted

    async def is_small_once_claims_are_old() -> bool:
        # Each time: another writer may have the last word.
        for pod in world.server.store.all("pods"):
            if "guanaco.dev/claimed-at" in pod["metadata"].get("annotations", {}):
                key = ("pods", "models", pod["metadata"]["name"])
                long_ago = {"guanaco.dev/claimed-at": "2026-01-01T00:00:00+00:00"}
                world.server.store.merge(key, {"metadata": {"annotations": long_ago}})
        return await is_size(1)

    growing = (PodPool("small", 1, max_size=2),)
    async with pooled(world, pools=growing) as cluster:
        for name in ("m-one", "m-two", "m-three"):
            await warm(cluster)
            await cluster.apply_deployment(spec(name))
        await until(lambda: is_size(2))
        assert len(await warm(cluster, 2)) == 2
        monkeypatch.setattr(pools, "LOOK_AGAIN_S", 0.05)
        await cluster.apply_deployment(spec("m-four"))
        await until(is_small_once_claims_are_old)
        assert await cluster.list_deployments() == ["m-four", "m-one", "m-three", "m-two"]


async def test_a_claimed_pod_counts_as_starting_until_its_model_answers(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec("m-tiny", "--start-delay", "3"))
    (pod,) = live(world)
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert (state.phase, state.replicas, state.endpoint) == (ReplicaPhase.RUNNING, (), "")
    assert state.is_settled, "there is nothing to apply again"
    assert await served(cluster) == "model-m-tiny"
    assert pod["metadata"]["uid"] in uids(live(world))


async def test_two_workers_never_claim_the_same_pod(world: FakeWorld) -> None:
    async with pooled(world, 2) as one, pooled(world, 2) as two:
        await warm(one, 2)
        await warm(two, 2)
        with world.kubelet.paused():  # the pool makes no third one meanwhile
            await asyncio.gather(
                one.apply_deployment(spec("m-one")), two.apply_deployment(spec("m-two"))
            )
        assert await served(one, "m-one") == "model-m-one"
        assert await served(one, "m-two") == "model-m-two"
        claimed = live(world, "m-one"), live(world, "m-two")
        assert [len(pods) for pods in claimed] == [1, 1]
        assert not uids(claimed[0]) & uids(claimed[1])


async def test_a_claim_whose_answer_was_lost_is_found_again(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    """The API changes the pod and does not say so; the repeated claim is refused with 409."""
    api, merge = cluster._api, cluster._api.merge

    async def twice(kind: object, name: str, change: Json) -> Json:
        if "resourceVersion" in change["metadata"]:
            await merge(kind, name, change)  # type: ignore[arg-type]
        return await merge(kind, name, change)  # type: ignore[arg-type]

    api.merge = twice  # type: ignore[method-assign, assignment]
    before = uids(waiting(world))
    await cluster.apply_deployment(spec())
    assert await served(cluster) == "model-m-tiny"
    assert uids(live(world)) == before
    assert replicas(world) == 0


LEAVES_CONNECTIONS = pytest.mark.filterwarnings(  # a worker that is killed closes nothing
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects what the killed worker left while its warnings are still ignored, not in somebody else's test."""
    yield
    gc.collect()


class Killed(Exception):
    """The worker's process has ended here."""


async def killed_before(cluster: KubernetesCluster, step: str) -> None:
    """Apply, and end before this step of the claim."""

    async def die(*_: object) -> None:
        raise Killed

    setattr(cluster._pools, step, die)
    with pytest.raises(Killed):
        await cluster.apply_deployment(spec())


@LEAVES_CONNECTIONS
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("step", ["_claim_one", "_give", "_mark_ordered"])
async def test_claim_of_a_killed_worker_resumes_at_the_next_look(
    world: FakeWorld, step: str
) -> None:
    async with pooled(world) as first:
        await warm(first)
        before = uids(waiting(world))
        await killed_before(first, step)
    async with pooled(world) as second:
        state = await second.observe("m-tiny")
        assert state is not None
        assert not state.is_settled, "the reconciler applies it again"
        assert not state.endpoint
        await warm(second)
        await second.apply_deployment(spec())
        assert await served(second) == "model-m-tiny"
        assert len(live(world)) == 1
        assert uids(live(world)) == before, "it is the same pod"


async def test_unwanted_claimed_server_leaves_no_pod(world: FakeWorld) -> None:
    async with pooled(world) as cluster:
        await warm(cluster)
        await killed_before(cluster, "_give")
        await cluster.delete("m-tiny")

        async def gone() -> bool:
            return not world.kubelet.pods("m-tiny")

        await until(gone)


async def test_a_claimed_pod_that_dies_is_replaced_by_another_claim(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec())
    await served(cluster)
    (first,) = live(world)
    await warm(cluster)
    world.kubelet.run_out_of_memory("m-tiny")
    await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED)
    await cluster.apply_deployment(spec())
    assert await served(cluster) == "model-m-tiny"
    (second,) = live(world)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert "guanaco.dev/from-pool" in second["metadata"]["labels"]


async def test_a_claimed_pod_that_is_deleted_makes_its_server_unsettled(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    """Drained: it leaves with a grace period, and no ReplicaSet makes another."""
    await cluster.apply_deployment(spec())
    await served(cluster)
    await warm(cluster)
    (first,) = live(world)
    world.kubelet.stop_s["m-tiny"] = 5
    world.server.store.delete(("pods", "models", first["metadata"]["name"]))
    await seen(cluster, lambda state: not state.is_settled and not state.endpoint)
    await cluster.apply_deployment(spec())
    assert await served(cluster) == "model-m-tiny"
    assert uids(live(world)) != uids([first])


async def test_lost_node_ends_a_claimed_server_and_blocks_new_claims(
    world: FakeWorld,
) -> None:
    async with pooled(world, 3) as cluster:
        await warm(cluster, 3)
        await cluster.apply_deployment(spec())
        await served(cluster)
        node = world.kubelet.node_of("m-tiny")
        world.kubelet.lose_node(node)
        await seen(cluster, lambda state: state.phase is ReplicaPhase.EXITED or not state.endpoint)
        await cluster.apply_deployment(spec())
        assert await served(cluster) == "model-m-tiny"
        assert [pod["spec"]["nodeName"] for pod in live(world)] != [node]


async def comes_back_with(world: FakeWorld, pod: Json, model: str) -> None:
    """Kill the pod's process and wait until another one serves the model."""
    process = world.kubelet.processes[pod["metadata"]["uid"]]
    process.send(signal.SIGKILL)

    async def is_back() -> bool:
        now = world.kubelet.processes.get(pod["metadata"]["uid"])
        if now is None or now is process:
            return False
        try:
            return await model_at(f"http://{now.address}:8000") == model
        except httpx.HTTPError:
            return False

    await until(is_back)


async def test_a_container_that_starts_again_loads_its_own_model(world: FakeWorld) -> None:
    world.kubelet.back_off_s = 0.2
    async with pooled(world) as cluster:
        await warm(cluster)
        await cluster.apply_deployment(spec())
        await served(cluster)
        (pod,) = live(world)
    # No platform is there to give it its order again.
    await comes_back_with(world, pod, "model-m-tiny")


async def test_ordered_pod_takes_no_other_order_and_requires_the_token(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec())
    await served(cluster)
    (pod,) = live(world)
    control = f"http://{pod['status']['podIP']}:8001"
    token = cluster._pools._tokens["small"]
    order = {"name": "m-other", "spec": "x", "arguments": [], "environment": {}, "secrets": {}}
    right, wrong = {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer x"}
    async with httpx.AsyncClient(trust_env=False, base_url=control) as client:
        whole = order | {"start_s": 1.0}
        assert (await client.post("/guanaco/order", json=whole, headers=right)).status_code == 409
        assert (await client.post("/guanaco/order", json=whole, headers=wrong)).status_code == 404
        assert (await client.post("/guanaco/order", json=whole)).status_code == 404
        assert (await client.post("/guanaco/order", json=order, headers=right)).status_code == 400
        assert (await client.post("/guanaco/order", content=b"x", headers=right)).status_code == 400
        assert (await client.get("/guanaco/pod")).status_code == 404
    assert await served(cluster) == "model-m-tiny"


async def test_secrets_reach_a_claimed_server_but_no_cluster_object(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(replace(spec(), secrets={"GUANACO_URL": "s3cret"}))
    await served(cluster)
    store = world.server.store
    assert "s3cret" not in str([store.all("pods"), store.all("deployments"), store.all("events")])
    (pod,) = live(world)
    assert "s3cret" not in "".join(line for _, line in store.logs[pod["metadata"]["uid"]])


async def test_without_a_waiting_pod_a_server_gets_its_own(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec(replicas=2))

    async def both() -> bool:
        state = await cluster.observe("m-tiny")
        return state is not None and len(state.replicas) == 2 and state.is_settled

    await until(both)
    assert replicas(world) == 1
    await cluster.apply_deployment(spec(replicas=2))
    assert replicas(world) == 1, "the one that has its own pod claims none"


async def test_another_spec_replaces_a_claimed_pod(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec())
    await served(cluster)
    (first,) = live(world)
    await warm(cluster)
    await cluster.apply_deployment(replace(spec(), environment={"PYTHONPATH": str(ROOT), "B": "2"}))
    assert await served(cluster) == "model-m-tiny"
    assert uids(live(world)) != uids([first])
    assert len(live(world)) == 1


async def test_fewer_replicas_end_claimed_pods(world: FakeWorld) -> None:
    async with pooled(world, 2) as cluster:
        await warm(cluster, 2)
        await cluster.apply_deployment(spec(replicas=2))
        assert len(live(world)) == 2
        await cluster.apply_deployment(spec(replicas=1))
        assert len(live(world)) == 1
        assert await served(cluster) == "model-m-tiny"


async def test_pod_that_refuses_its_order_is_deleted_and_another_claimed(
    world: FakeWorld,
) -> None:
    class Deaf(PoolPort):
        refused = 0

        async def give(self, endpoint: str, token: str, order: object) -> None:
            if self.refused < 3:
                self.refused += 1
                raise OrderNotTaken("It does not answer.")
            await super().give(endpoint, token, order)  # type: ignore[arg-type]

    async with pooled(world, 2) as cluster:
        cluster._pools._port = Deaf()
        await warm(cluster, 2)
        before = uids(waiting(world))
        await cluster.apply_deployment(spec())
        assert await served(cluster) == "model-m-tiny"
        (pod,) = live(world)
        assert pod["metadata"]["uid"] in before


async def test_pool_with_a_watch_gap_gives_each_pod_away_once(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    world.server.faults.watch_delay_s = 1
    world.server.store.forget_history()
    world.server.faults.cut_streams()
    await cluster.apply_deployment(spec("m-one"))
    await cluster.apply_deployment(spec("m-two"))
    for name in ("m-one", "m-two"):
        assert await served(cluster, name) == f"model-{name}"
        assert len(live(world, name)) == 1


async def test_the_pod_whose_node_has_the_artifact_is_claimed(
    world: FakeWorld, tmp_path: Path
) -> None:
    """Both nodes are this machine here; the artifact is known by the key in the server's command."""
    cache = tmp_path / "cache"
    (cache / KEY).mkdir(parents=True)
    async with pooled(world, 2, cache_path=str(cache)) as cluster:
        pods = await warm(cluster, 2)
        port, there = cluster._pools._port, cluster._pools._control(pods[0])
        assert not await port.holds(*there, KEY), "its tensors are not whole yet"
        (cache / KEY / "model.tensors").touch()
        assert await port.holds(*there, KEY)
        near = pods[1]["metadata"]["name"]

        class OneNode(PoolPort):
            async def holds(self, endpoint: str, token: str, artifact: str) -> bool:
                return artifact == KEY and pods[1]["status"]["podIP"] in endpoint

        cluster._pools._port = OneNode()
        await cluster.apply_deployment(spec("m-tiny", "--artifact", f"s3://models/{KEY}"))
        assert [pod["metadata"]["name"] for pod in live(world)] == [near]


async def test_server_larger_than_the_pool_starts_without_it(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    before = uids(waiting(world))
    await cluster.apply_deployment(spec(resources=Resources(memory_bytes=64 * 2**20)))
    assert await served(cluster) == "model-m-tiny"
    assert uids(waiting(world)) == before
    assert replicas(world) == 1


async def test_pool_removed_from_settings_goes_and_its_servers_stay(
    world: FakeWorld,
) -> None:
    async with pooled(world) as cluster:
        await warm(cluster)
        await cluster.apply_deployment(spec())
        await served(cluster)
        before = uids(live(world))
    async with pooled(world, 0) as cluster:

        async def only_the_server() -> bool:
            return uids(world.server.store.all("pods")) == before

        await until(only_the_server)
        await cluster.apply_deployment(spec())
        assert await served(cluster) == "model-m-tiny"
        assert uids(live(world)) == before


async def test_deleted_pool_is_made_again_when_a_server_is_expected(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    world.server.store.delete(("deployments", "models", "guanaco-pool-small"))
    await cluster.expect_server()
    await until(lambda: warm_again(world))


async def warm_again(world: FakeWorld) -> bool:
    return any(statuses.is_ready(pod) for pod in waiting(world))


async def test_a_cluster_that_forbids_claims_starts_servers_as_ever(world: FakeWorld) -> None:
    async with pooled(world) as cluster:
        await warm(cluster)
        world.server.faults.answer(403, times=1, only="PATCH /api/v1/namespaces/models/pods")
        await cluster.apply_deployment(spec())
        assert await served(cluster) == "model-m-tiny"
        assert replicas(world) == 1


def swapped(name: str = "m-tiny") -> DeploymentSpec:
    """Return what the server is after a swap, by the name that its model says; the scripted engine takes no other weights itself."""
    return scripted(name, "--name", "model-swapped")


async def test_swapped_server_keeps_its_pod_and_restarts_as_swapped(
    world: FakeWorld,
) -> None:
    world.kubelet.back_off_s = 0.2
    async with pooled(world) as cluster:
        assert cluster.can_relabel
        await warm(cluster)
        await cluster.apply_deployment(spec())
        await served(cluster)
        (pod,) = live(world)
        await cluster.relabel(swapped())
        await cluster.relabel(swapped())
        state = await seen(cluster, lambda state: state.is_settled and bool(state.endpoint))
        assert state.is_swappable
        await cluster.apply_deployment(swapped())
        assert uids(live(world)) == uids([pod]), "it is what the spec says"
        assert replicas(world) == 0
        await comes_back_with(world, pod, "model-swapped")


async def test_a_pod_whose_pool_was_renamed_is_not_swapped(world: FakeWorld) -> None:
    """The token with which it would take an order is gone; a swap would be tried without end."""
    async with pooled(world) as cluster:
        await warm(cluster)
        await cluster.apply_deployment(spec())
        await served(cluster)
    async with pooled(world, pools=(PodPool("other", 1),)) as cluster:
        state = await seen(cluster, lambda state: bool(state.endpoint))
        assert cluster.can_relabel
        assert not state.is_swappable


@LEAVES_CONNECTIONS
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("step", ["_give", "merge", "settle"])
async def test_swap_of_a_killed_worker_continues_at_the_next_look(
    world: FakeWorld, step: str
) -> None:
    """Killed before the order is given, before the pod is marked, before the Deployment has its new spec."""

    async def die(*_: object, **__: object) -> None:
        raise Killed

    async with pooled(world) as first:
        await warm(first)
        await first.apply_deployment(spec())
        await served(first)
        (pod,) = live(world)
        setattr(first._api if step == "merge" else first._pools, step, die)
        with pytest.raises(Killed):
            await first.relabel(swapped())
    async with pooled(world) as second:
        await second.relabel(swapped())
        await second.apply_deployment(swapped())
        await seen(second, lambda state: state.is_settled and bool(state.endpoint))
        assert uids(live(world)) == uids([pod])


async def test_a_server_of_its_own_pod_is_not_swapped(
    cluster: KubernetesCluster, world: FakeWorld
) -> None:
    await cluster.apply_deployment(spec(resources=Resources(memory_bytes=64 * 2**20)))
    state = await seen(cluster, lambda state: bool(state.endpoint))
    assert not state.is_swappable
    before = live(world)
    await cluster.relabel(swapped())
    assert uids(live(world)) == uids(before)
    assert replicas(world) == 1
