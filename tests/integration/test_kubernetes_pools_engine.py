"""A pool's pod on the fake Kubernetes with real vLLM: it imports, waits, is claimed over its control port, and serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.options import Pool
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.model_server import Generation
from guanaco_server.deployments.vllm_server import VllmServer
from tests.fixtures.fake_kubernetes import statuses
from tests.fixtures.fake_kubernetes.processes import PodProcess
from tests.fixtures.kubernetes import FakeWorld, fake_world, seen, until
from tests.fixtures.serializer_jobs import KEY, REPO, job_for, make_artifact

LIMITS = ("--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--max-num-seqs", "8")
START_S = 240.0  # 13 s on an idle machine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.mark.timeout(900)
async def test_vllm_is_claimed_serves_its_model_and_loads_it_again_after_kill_9(
    world: FakeWorld, tmp_path: Path, engine_python: Path
) -> None:
    make_tiny_repo(tmp_path / "hub" / REPO)
    with LocalHub(tmp_path / "hub") as hub:
        await make_artifact(LocalStore(tmp_path / "artifacts"), job_for(hub))
    command = (str(engine_python), "-m", "guanaco_server.engine.serve")
    options = replace(world.options(), pools=(Pool("small", 1),), engine_command=command)
    artifact = (tmp_path / "artifacts" / KEY).as_uri()
    given = ("--artifact", artifact, "--name", "tiny_v1", "--host", "{host}", "--port", "{port}")
    spec = DeploymentSpec("m-tiny", (*command, *given, *LIMITS), submission_id="tiny_v1")
    world.kubelet.back_off_s = 0.2
    cluster = KubernetesCluster(world.api(), options)
    await cluster.start()
    try:
        pod = await until(lambda: _warm(cluster), START_S)
        claimed_at = time.monotonic()
        await cluster.apply_deployment(spec)
        first = await until(lambda: _reply(cluster), START_S)
        print(f"from the claim to the first reply: {time.monotonic() - claimed_at:.1f} s")
        (server,) = world.kubelet.pods("m-tiny")
        assert server["metadata"]["uid"] == pod["metadata"]["uid"]
        kept = world.kubelet.processes[pod["metadata"]["uid"]]
        _kill_server(kept)
        await until(lambda: _is_another(world, pod["metadata"]["uid"], kept), START_S)
        assert await until(lambda: _reply(cluster), START_S) == first
        (again,) = world.kubelet.pods("m-tiny")
        assert again["metadata"]["uid"] == pod["metadata"]["uid"], "the container started again"
    finally:
        await cluster.close()


async def _warm(cluster: KubernetesCluster) -> dict[str, dict[str, str]] | None:
    return next((pod for pod in cluster._informers.waiting_pods() if statuses.is_ready(pod)), None)


async def _reply(cluster: KubernetesCluster) -> str | None:
    """What the model says; None while the platform sees no replica that is ready."""
    state = await seen(cluster, lambda _: True)
    if not state.endpoint:
        return None
    vllm = VllmServer()
    greedy = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=8)
    asked = Generation("tiny_v1", "Hello, how are", greedy)
    try:
        return "".join([chunk.text async for chunk in vllm.generate(state.endpoint, asked)])
    finally:
        await vllm.close()


async def _is_another(world: FakeWorld, uid: str, before: object) -> bool:
    return world.kubelet.processes.get(uid, before) is not before


def _kill_server(keeper: PodProcess) -> None:
    """Kill what the keeper started: the model server with its engine."""
    for process in psutil.Process(keeper.pid).children(recursive=True):
        process.kill()
