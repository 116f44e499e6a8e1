"""A pool's pod on the fake Kubernetes with real vLLM: it waits, is claimed over its control port, serves and is swapped.

Its server is forked from the process that a run of the tests shares; that a pod imports vLLM itself is in
test_kubernetes_journey.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.cluster import KubernetesCluster
from guanaco_server.clusters.kubernetes.options import PodPool
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.deployments.model_servers.model_server import (
    Generation,
    ModelServerFault,
    SwapOrder,
)
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.formats.control import TOKEN_VARIABLE
from tests.fixtures.fake_kubernetes.processes import PodProcess
from tests.fixtures.fake_kubernetes.store import Json
from tests.fixtures.forked import kill_server, pods_fork
from tests.fixtures.kubernetes import FakeWorld, fake_world, seen, until
from tests.fixtures.named_models import LLAMA, make_named_repo
from tests.fixtures.pools import warm
from tests.fixtures.serializer_jobs import job_for, make_artifact, source_of

LIMITS = ("--max-model-len", "512", "--kv-cache-memory-bytes", "67108864", "--max-num-seqs", "8")
START_S = 600.0  # 13 s on an idle machine, and the imports for whoever comes first
WORDS = (301, 302)  # of which each model says one
KEYS = ("01" * 32, "02" * 32)
GREEDY = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=6)
TOKEN = "the server's"


@pytest.fixture
def world(tmp_path: Path, engine_forks: None) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        pods_fork(world.kubelet)
        yield world


@pytest.mark.timeout(900)
async def test_claimed_vllm_is_swapped_and_reloads_its_model_after_kill(
    world: FakeWorld, tmp_path: Path, engine_python: Path
) -> None:
    says = await _make_artifacts(tmp_path)
    command = (str(engine_python), "-m", "guanaco_server.engine.serve")
    options = replace(world.options(), pools=(PodPool("small", 1),), engine_command=command)
    specs = [_spec(command, tmp_path / "artifacts" / key) for key in KEYS]
    world.kubelet.back_off_s = 0.2
    cluster, vllm = KubernetesCluster(world.api(), options), VllmServer()
    await cluster.start()
    try:
        (pod,) = await warm(cluster, within_s=START_S)
        claimed_at = time.monotonic()
        await cluster.apply_deployment(specs[0])
        assert await until(lambda: _reply(cluster, vllm, KEYS[0]), START_S) == says[0]
        print(f"from the claim to the first reply: {time.monotonic() - claimed_at:.1f} s")
        await _kill_and_wait(world, pod)
        assert await until(lambda: _reply(cluster, vllm, KEYS[0]), START_S) == says[0]

        state = await seen(cluster, lambda state: bool(state.endpoint) and state.is_swappable)
        await cluster.relabel(specs[1])
        uri = (tmp_path / "artifacts" / KEYS[1]).as_uri()
        await vllm.swap(state.endpoint, SwapOrder(uri, TOKEN))
        assert await _reply(cluster, vllm, KEYS[1]) == says[1]
        await _kill_and_wait(world, pod)
        assert await until(lambda: _reply(cluster, vllm, KEYS[1]), START_S) == says[1]
        (still,) = world.kubelet.pods("m-tiny")
        assert still["metadata"]["uid"] == pod["metadata"]["uid"], "it was one pod all the time"
    finally:
        await vllm.close()
        await cluster.close()


async def _make_artifacts(folder: Path) -> list[str]:
    """Make two of one shape, and return what each model says."""
    repos = [folder / "hub" / "acme" / f"m{word}" for word in WORDS]
    says = [make_named_repo(repo, word, LLAMA) for repo, word in zip(repos, WORDS, strict=True)]
    with LocalHub(folder / "hub") as hub:
        for repo, key in zip(repos, KEYS, strict=True):
            job = job_for(hub, key=key, model=source_of(hub, f"acme/{repo.name}"))
            await make_artifact(LocalStore(folder / "artifacts"), job)
    return says


def _spec(command: tuple[str, ...], artifact: Path) -> DeploymentSpec:
    given = ("--artifact", artifact.as_uri(), "--name", "tiny_v1")
    place = ("--host", "{host}", "--port", "{port}")
    spec = DeploymentSpec("m-tiny", (*command, *given, *place, *LIMITS), submission_id="tiny_v1")
    return replace(spec, secrets={TOKEN_VARIABLE: TOKEN})


async def _reply(cluster: KubernetesCluster, vllm: VllmServer, key: str) -> str | None:
    """Return the word that the model says; None while it cannot be asked for this artifact."""
    state = await seen(cluster, lambda _: True)
    if not state.endpoint:
        return None
    asked = Generation(f"tiny_v1#{key}", "Hello, how are you?", GREEDY, with_tokens=True)
    try:
        told = [
            token.text
            async for chunk in vllm.generate(state.endpoint, asked)
            for token in chunk.tokens
        ]
    except ModelServerFault:
        return None
    (word,) = set(told)
    return word


async def _kill_and_wait(world: FakeWorld, pod: Json) -> None:
    """Kill the model server with its engine, and wait until the container has started again."""
    uid = pod["metadata"]["uid"]
    before: PodProcess = world.kubelet.processes[uid]
    kill_server(before.folder)

    async def is_another() -> bool:
        return world.kubelet.processes.get(uid, before) is not before

    await until(is_another, START_S)
