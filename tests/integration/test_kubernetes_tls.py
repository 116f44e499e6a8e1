"""Tests a cluster as real ones are reached: by TLS, with a certificate that the kubeconfig vouches for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.errors import ClusterUnreachable
from guanaco_server.clusters.kubernetes.api.client import (
    DEPLOYMENT,
    EVENT,
    GROUP_SET,
    JOB,
    LEASE,
    POD,
    KubernetesApi,
    connect,
)
from tests.fixtures.fake_kubernetes.certificates import Certificate
from tests.fixtures.fake_kubernetes.kubelet import Kubelet
from tests.fixtures.fake_kubernetes.server import FakeKubernetes
from tests.fixtures.kubernetes import FakeWorld, LinesAcrossCuts, job, until

pytestmark = pytest.mark.slow

WATCHED = (DEPLOYMENT, JOB, POD, EVENT, GROUP_SET)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with FakeKubernetes(Certificate.make(tmp_path)) as server, Kubelet(server) as kubelet:
        yield FakeWorld(server, kubelet, tmp_path)


def streams() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kubernetes-stream"]


async def test_job_over_tls_survives_cuts_and_leaves_no_thread(
    world: FakeWorld,
) -> None:
    lines = LinesAcrossCuts(world, 20)
    async with world.cluster() as cluster:
        assert (await cluster.run_job(job(lines.script), lines.take)).exit_code == 0
        assert lines == lines.all
        await until(are_watching)

    async def none_is_left() -> bool:
        return streams() == []

    await until(none_is_left)


async def are_watching() -> bool:
    return len(streams()) == len(WATCHED)


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    world: FakeWorld, tmp_path: Path
) -> None:
    kubeconfig = world.server.write_kubeconfig(tmp_path / "other")
    other = tmp_path / "elsewhere"
    other.mkdir()
    Certificate.make(other)
    text = kubeconfig.read_text().replace(
        str(tmp_path / "certificate.pem"), str(other / "certificate.pem")
    )
    kubeconfig.write_text(text)
    api = KubernetesApi(connect("fake", str(kubeconfig)), "models", patience_s=0.3)
    with pytest.raises(ClusterUnreachable, match="does not answer"):
        await api.get(LEASE, "any")
