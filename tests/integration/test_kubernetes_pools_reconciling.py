"""Submissions whose servers are claimed pods, and the reconciler that keeps them served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.tables import Phase
from tests.fixtures.kubernetes import FakeWorld, fake_world
from tests.fixtures.pools import IMPORTS, pooled, warm
from tests.fixtures.world import eventually
from tests.integration.test_kubernetes_reconciling import Deployed

pytestmark = pytest.mark.slow

ONE, TWO = "acme-one_v1", "acme-two_v1"


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorld]:
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
async def cluster(kubernetes: FakeWorld) -> AsyncIterator[KubernetesCluster]:
    async with pooled(kubernetes, 2) as cluster:
        await warm(cluster, 2)
        yield cluster


@pytest.fixture
async def world(database: Database, cluster: KubernetesCluster) -> AsyncIterator[Deployed]:
    world = Deployed(database, cluster)
    try:
        yield world
    finally:
        await world.reconciler.stop()
        await world.server.close()


async def test_what_befalls_claimed_pods_is_repaired_by_other_claims(
    world: Deployed, kubernetes: FakeWorld, cluster: KubernetesCluster
) -> None:
    """One is drained and takes its time, the other is evicted: neither is the submission's fault."""
    await world.deploy(ONE, TWO)
    await world.reconciler.start()
    names = {one: deployment_name(one) for one in (ONE, TWO)}
    before = {one: world.deployments.replicas(one) for one in names}
    assert all(
        "from-pool" in str(pod["metadata"]) for one in names for pod in pods(kubernetes, one)
    )
    await warm(cluster, 2)
    kubernetes.kubelet.stop_s[names[ONE]] = 600
    (drained,) = pods(kubernetes, ONE)
    kubernetes.server.store.delete(("pods", "models", drained["metadata"]["name"]))
    kubernetes.kubelet.evict(names[TWO])
    for one in names:
        await eventually(partial(world.is_served, one, but_not_at=before[one]))
        row = await world.row(one)
        assert (row.phase, row.restarts) == (Phase.READY, 0)
        assert "from-pool" in str(pods(kubernetes, one)[-1]["metadata"])
    assert world.given_up == []


async def test_a_submission_that_is_withdrawn_leaves_no_claimed_pod(
    world: Deployed, kubernetes: FakeWorld
) -> None:
    await world.deploy(ONE)
    await world.reconciler.start()
    async with world.database.write() as session:
        await world.deployments.withdraw(session, ONE)

    async def is_gone() -> bool:
        return not pods(kubernetes, ONE)

    await eventually(is_gone)


def pods(kubernetes: FakeWorld, submission_id: str) -> list[dict[str, dict[str, str]]]:
    return kubernetes.kubelet.pods(deployment_name(submission_id))
