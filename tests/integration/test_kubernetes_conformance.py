"""The cluster port against the fake API server, and against a real one where GUANACO_TEST_KUBECONFIG names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase, Resources
from guanaco_server.clusters.kubernetes.api.client import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    GROUP_SET,
    JOB,
    NETWORK_POLICY,
    SECRET,
    KubernetesApi,
    UnexpectedStatus,
)
from guanaco_server.clusters.kubernetes.api.lease import LeaseLeadership
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.manifests.objects import job_object, owned_by_job
from guanaco_server.clusters.kubernetes.names import object_name
from tests.fixtures.kubernetes import ROOT, Lines, fake_world, job, phase, shell, until
from tests.fixtures.pools import IMPORTS, pooled, warm
from tests.fixtures.pools import spec as pooled_spec
from tests.fixtures.real_kubernetes import KUBECONFIG, START_S, Conforming, real_cluster

pytestmark = pytest.mark.slow

OWNED = (NETWORK_POLICY, DISRUPTION_BUDGET, SECRET)
SMALL = Resources(memory_bytes=64 * 2**20)


@pytest.fixture(params=["fake", "worker", "real"])
async def conforming(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Conforming]:
    """The fake cluster, the fake one with no more than the worker's rights, and a real one."""
    if request.param != "real":
        is_admin = request.param == "fake"
        with fake_world(tmp_path) as world:
            world.server.role = None if is_admin else worker_role()
            yield Conforming(
                world.api()._client, world.options(), has_nodes=True, is_admin=is_admin
            )
        return
    if KUBECONFIG is None:
        pytest.skip("GUANACO_TEST_KUBECONFIG names no cluster.")
    async with real_cluster() as found:
        yield found


def worker_role() -> set[tuple[str, str]]:
    """The rights that the manifests give to the worker: resource and verb."""
    objects = yaml.safe_load_all((ROOT / "k8s" / "base" / "accounts.yaml").read_text())
    (role,) = (one for one in objects if one["kind"] == "Role")
    return {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
async def cluster(conforming: Conforming) -> AsyncIterator[KubernetesCluster]:
    async with conforming.cluster() as cluster:
        yield cluster


@pytest.fixture
def nodes(conforming: Conforming) -> None:
    if not conforming.has_nodes:
        pytest.skip("Without GUANACO_TEST_IMAGE no pod runs there.")


@pytest.fixture
def admin(conforming: Conforming) -> None:
    if not conforming.is_admin:
        pytest.skip("With GUANACO_TEST_NAMESPACE the suite does what the worker may do.")


def server(name: str = "m-tiny", script: str = "sleep 600") -> DeploymentSpec:
    given = shell(name, script)
    return replace(given, secrets={"TOKEN": "x"}, resources=SMALL, submission_id="Acme/Tiny_v1")


@pytest.mark.usefixtures("admin")
async def test_api_takes_all_objects_of_a_server_and_owns_them(
    conforming: Conforming, cluster: KubernetesCluster
) -> None:
    await cluster.apply_deployment(server())
    api = conforming.api()
    deployment = await api.get(DEPLOYMENT, "m-tiny")
    assert deployment is not None
    for kind in OWNED:
        found = await api.get(kind, "m-tiny")
        assert found is not None, kind
        assert found["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
        assert found["metadata"]["annotations"]["guanaco.dev/submission"] == "Acme/Tiny_v1"


async def test_applying_again_makes_no_new_generation(
    conforming: Conforming, cluster: KubernetesCluster
) -> None:
    await cluster.apply_deployment(server())
    api = conforming.api()
    before = await api.get(DEPLOYMENT, "m-tiny")
    await cluster.apply_deployment(replace(server(), secrets={"TOKEN": "y"}))
    after = await api.get(DEPLOYMENT, "m-tiny")
    assert before is not None
    assert after is not None
    assert before["metadata"]["generation"] == after["metadata"]["generation"]
    if conforming.is_admin:
        secret = await api.get(SECRET, "m-tiny")
        assert secret is not None
        assert secret["data"] == {"TOKEN": "eQ=="}


async def test_the_api_takes_all_objects_of_a_job(conforming: Conforming) -> None:
    api, spec = conforming.api(), replace(job("true"), resources=SMALL, secrets={"TOKEN": "x"})
    applied = await api.apply(job_object(spec, conforming.options))
    for owned in owned_by_job(spec, conforming.options, applied):
        await api.apply(owned)
    assert await api.get(JOB, "s-job") is not None


@pytest.mark.parametrize("name", ["m-" + "x" * 80, "M_odd.Name", "9-lives"])
async def test_the_api_takes_any_name(cluster: KubernetesCluster, name: str) -> None:
    await cluster.apply_deployment(server(name))
    assert await cluster.list_deployments() == [name]
    assert await cluster.observe(name) is not None


async def test_api_takes_a_group_over_machines_and_one_machine_again(
    conforming: Conforming, cluster: KubernetesCluster
) -> None:
    try:
        await conforming.api().list(GROUP_SET)
    except UnexpectedStatus:
        pytest.skip("LeaderWorkerSet is not installed there.")
    over_two = replace(server("m-" + "x" * 60), resources=replace(SMALL, nodes=2))
    for spec in (over_two, over_two, replace(over_two, resources=SMALL)):
        await cluster.apply_deployment(spec)
        assert await cluster.list_deployments() == [over_two.name]
        assert await cluster.observe(over_two.name) is not None
    await cluster.apply_deployment(over_two)
    await cluster.delete(over_two.name)
    assert await cluster.list_deployments() == []


async def test_two_workers_that_apply_at_once_make_one_server(conforming: Conforming) -> None:
    async with conforming.cluster("worker-1") as one, conforming.cluster("worker-2") as other:
        await asyncio.gather(*(cluster.apply_deployment(server()) for cluster in (one, other) * 3))
        for cluster in (one, other):
            assert await cluster.list_deployments() == ["m-tiny"]


async def test_a_watch_sees_what_others_do(conforming: Conforming) -> None:
    async with conforming.cluster("worker-1") as one, conforming.cluster("worker-2") as other:
        await one.apply_deployment(server())
        await until(lambda: is_seen(other))
        await conforming.api().delete(DEPLOYMENT, object_name("m-tiny"))

        async def is_gone() -> bool:
            return await one.observe("m-tiny") is None and await other.observe("m-tiny") is None

        await until(is_gone)


async def is_seen(cluster: KubernetesCluster) -> bool:
    return await cluster.observe("m-tiny") is not None


async def test_of_two_workers_one_leads_until_it_stops(conforming: Conforming) -> None:
    one, other = (LeaseLeadership(conforming.api(), holder) for holder in ("one", "other"))
    assert await one.seek()
    assert not await other.seek()
    assert await one.seek()
    await one.stop()
    assert await other.seek()
    await other.stop()


@pytest.mark.usefixtures("admin")
async def test_a_stale_replacement_is_a_conflict(conforming: Conforming) -> None:
    api = conforming.api()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"a": "eA=="},
    }
    created = await api.create(secret)
    await api.replace({**created, "data": {"a": "eQ=="}})
    with pytest.raises(UnexpectedStatus) as stale:
        await api.replace({**created, "data": {"a": "eg=="}})
    assert stale.value.status == 409


async def test_an_invalid_object_is_refused_in_one_sentence(conforming: Conforming) -> None:
    bad = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "Upper_Case"}}
    with pytest.raises(ClusterRefused, match="422"):
        await conforming.api().apply(bad)


@pytest.mark.usefixtures("nodes")
async def test_a_job_gives_its_lines_and_its_exit_status(cluster: KubernetesCluster) -> None:
    lines = Lines()
    spec = replace(job("echo one; echo $TOKEN; exit 4", timeout_s=START_S), resources=SMALL)
    result = await cluster.run_job(replace(spec, secrets={"TOKEN": "two"}), lines.take)
    assert (result.exit_code, lines) == (4, ["one", "two"])


@pytest.mark.usefixtures("nodes")
async def test_dying_server_is_reported_and_a_deleted_one_is_gone(
    conforming: Conforming, cluster: KubernetesCluster
) -> None:
    await cluster.apply_deployment(server(script="echo no weights; exit 7"))

    async def has_exited() -> bool:
        return await phase(cluster) is ReplicaPhase.EXITED

    await until(has_exited, START_S)
    state = await cluster.observe("m-tiny")
    assert state is not None
    assert state.exit_code == 7
    assert (await cluster.logs("m-tiny"))[0] == ["no weights"]
    await cluster.delete("m-tiny")
    assert await cluster.observe("m-tiny") is None
    if conforming.is_admin:
        await until(lambda: nothing_owned(conforming.api()))


async def nothing_owned(api: KubernetesApi) -> bool:
    return [await api.get(kind, "m-tiny") for kind in OWNED] == [None] * len(OWNED)


async def test_the_worker_has_no_right_that_it_does_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    with fake_world(tmp_path) as world:
        world.server.role = worker_role()
        options = world.with_one_address()
        cluster = KubernetesCluster(world.api(), options)
        leadership = LeaseLeadership(world.api(), "one")
        await cluster.start()
        await cluster.apply_deployment(server(script="echo begun; exit 7"))

        async def has_exited() -> bool:
            return await phase(cluster) is ReplicaPhase.EXITED

        await until(has_exited)
        await cluster.logs("m-tiny")
        await cluster.apply_deployment(server(script="echo begun; exit 7"))
        world.server.store.delete(("deployments", "models", "m-tiny"), "Foreground")
        await cluster.delete("m-tiny")
        await cluster.apply_deployment(replace(server("m-two"), resources=replace(SMALL, nodes=2)))
        await cluster.delete("m-two")
        working = asyncio.create_task(cluster.run_job(job("sleep 600"), Lines().take))

        async def has_job() -> bool:
            return any(world.kubelet.pods("s-job"))

        await until(has_job)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert await leadership.seek()
        assert await leadership.seek()
        await cluster.close()
        async with pooled(world) as claiming:
            await warm(claiming)
            await claiming.apply_deployment(pooled_spec())
        assert any("from-pool" in str(pod["metadata"]) for pod in world.kubelet.pods("m-tiny"))
        # Reading one Deployment or Job is for a watch that is silent while one of them is waited for.
        rare = {("deployments", "get"), ("jobs", "get")}
        assert worker_role() - world.server.used_rights <= rare
