"""Real vLLM serves a base and several LoRA adapters of it at once, and answers as the merged models do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.engines.specs import AdapterLimits
from guanaco_server.deployments.model_servers.model_server import (
    AdapterRefused,
    GeneratedToken,
    Generation,
    HoldsAnotherModel,
    ModelServerFault,
    SwapOrder,
)
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.formats.control import TOKEN_VARIABLE
from guanaco_server.formats.manifest import TENSORS_NAME
from guanaco_server.serializer.task import Adapter, Merge, Source
from tests.fixtures.artifacts import flip_byte
from tests.fixtures.lora_repos import CHANGED, make_lora_repo
from tests.fixtures.serializer_jobs import IMPORTS, job_for, make_artifact, source_of
from tests.fixtures.swapping import machine
from tests.integration.test_swapped_engines import PYTHON

BASE, MERGED, ONE, TWO, DAMAGED, WIDE = (f"{number:02}" * 32 for number in range(1, 7))
TOKEN = "the server's"
READY_S = 1_200  # 13 s on an idle machine
GREEDY = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=12)
SCALE = 2.0
CLOSE = (
    0.05  # of log-probabilities: a merge rounds the weights once to bfloat16, an adapter does not
)
LIMITS = AdapterLimits(max_rank=8, at_once=2, kept=4)

pytestmark = [
    pytest.mark.timeout(1_400),
    pytest.mark.engine,
    pytest.mark.usefixtures("clusters_fork"),
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-engine has not been run"),
]


def adapter_of(hub: LocalHub, repo: str) -> Adapter:
    source: Source = source_of(hub, repo)
    merges = []
    for module in CHANGED:
        name = f"model.layers.0.{module}"
        a, b = (f"base_model.model.{name}.lora_{side}.weight" for side in "AB")
        merges.append(Merge(tensor=f"{name}.weight", a=a, b=b, scale=SCALE))
    kept = source.model_dump() | {"small_files": ()}
    return Adapter(**kept, merges=tuple(merges))


async def make_artifacts(folder: Path) -> LocalStore:
    """The base, its first adapter merged, and four adapters by themselves."""
    store, repos = LocalStore(folder / "artifacts"), folder / "hub" / "acme"
    make_tiny_repo(repos / "tiny")
    for seed, name in enumerate(("one", "two", "damaged"), 1):
        make_lora_repo(repos / name, repos / "tiny", seed=seed)
    make_lora_repo(repos / "wide", repos / "tiny", seed=4, rank=16)
    with LocalHub(folder / "hub") as hub:
        model = source_of(hub, "acme/tiny")
        one = adapter_of(hub, "acme/one")
        await make_artifact(store, job_for(hub, key=BASE, model=model))
        await make_artifact(store, job_for(hub, key=MERGED, model=model, adapter=one))
        for key, name in ((ONE, "one"), (TWO, "two"), (DAMAGED, "damaged"), (WIDE, "wide")):
            adapter = adapter_of(hub, f"acme/{name}")
            job = job_for(hub, key=key, model=model, adapter=adapter, base_key=BASE)
            await make_artifact(store, job)
    return store


@dataclass(frozen=True)
class Server:
    vllm: VllmServer
    endpoint: str

    async def load(self, store: LocalStore, key: str, token: str = TOKEN) -> None:
        await self.vllm.load_adapter(self.endpoint, SwapOrder(store.uri(key), token))

    async def reply(self, model: str) -> list[GeneratedToken]:
        asked = Generation(model, "Hello, how are you?", GREEDY, with_tokens=True)
        return [
            token
            async for chunk in self.vllm.generate(self.endpoint, asked)
            for token in chunk.tokens
        ]


async def serve(cluster: LocalCluster, name: str, artifact: str, *further: str) -> Server:
    command = f"{PYTHON} -m guanaco_server.engine.serve --artifact {artifact} --name tiny_v1"
    limits = "--port {port} --max-model-len 512 --kv-cache-memory-bytes 67108864"
    spec = DeploymentSpec(name, (*command.split(), *limits.split(), *further), IMPORTS)
    await cluster.apply_deployment(replace(spec, secrets={TOKEN_VARIABLE: TOKEN}))
    vllm = VllmServer()
    async with asyncio.timeout(READY_S):
        while True:
            state = await cluster.observe(name)
            assert state is not None
            assert state.phase is ReplicaPhase.RUNNING, (await cluster.logs(name))[0][-20:]
            if await vllm.is_healthy(state.endpoint):
                return Server(vllm, state.endpoint)
            await asyncio.sleep(0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with machine(tmp_path, PYTHON) as cluster:
        yield cluster


def difference(one: list[GeneratedToken], other: list[GeneratedToken]) -> float:
    assert [token.text for token in one] == [token.text for token in other]
    return max(abs(a.logprob - b.logprob) for a, b in zip(one, other, strict=True))


async def test_adapters_on_one_server_answer_as_merged_models_do(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    store = await make_artifacts(tmp_path)
    merged = await serve(cluster, "m-merged", store.uri(MERGED))
    wanted = await merged.reply(f"tiny_v1#{MERGED}")
    await merged.vllm.close()
    await cluster.delete("m-merged")

    server = await serve(cluster, "m-base", store.uri(BASE), *LIMITS.arguments)
    alone = await server.reply(f"tiny_v1#{BASE}")
    assert await server.vllm.held_adapters(server.endpoint) == frozenset()
    with pytest.raises(ModelServerFault, match="404"):
        await server.load(store, ONE, token="somebody else's")
    with pytest.raises(ModelServerFault, match="404"):
        await server.reply(f"{ONE}#{BASE}")
    for key in (ONE, TWO, ONE):  # twice changes nothing
        await server.load(store, key)
    assert await server.vllm.held_adapters(server.endpoint) == {ONE, TWO}

    models = [f"{name}#{BASE}" for name in (ONE, TWO, "tiny_v1")] * 3
    one, two, *others = await asyncio.gather(*map(server.reply, models))
    for model, reply in zip(models, [one, two, *others], strict=True):
        beside = {models[0]: one, models[1]: two}.get(model, alone)
        assert difference(reply, beside) < CLOSE, model
    texts = {"".join(token.text for token in reply) for reply in (one, two, alone)}
    assert len(texts) == 3, texts
    assert difference(one, wanted) < CLOSE

    damaged = tmp_path / "artifacts" / DAMAGED / TENSORS_NAME
    flip_byte(damaged, damaged.stat().st_size - 2_000)
    with pytest.raises(AdapterRefused, match="damaged"):
        await server.load(store, DAMAGED)
    with pytest.raises(AdapterRefused, match="rank 16"):
        await server.load(store, WIDE)
    with pytest.raises(AdapterRefused, match="no adapter"):
        await server.load(store, MERGED)

    await server.vllm.unload_adapter(server.endpoint, SwapOrder(store.uri(ONE), TOKEN))
    assert await server.vllm.held_adapters(server.endpoint) == {TWO}
    with pytest.raises(ModelServerFault, match="404"):
        await server.reply(f"{ONE}#{BASE}")
    assert difference(await server.reply(f"{TWO}#{BASE}"), two) < CLOSE

    await server.vllm.swap(server.endpoint, SwapOrder(store.uri(MERGED), TOKEN))
    assert await server.vllm.held_adapters(server.endpoint) == frozenset()
    assert await server.reply(f"tiny_v1#{MERGED}") == wanted, "to the last digit"
    with pytest.raises(HoldsAnotherModel):
        await server.reply(f"{TWO}#{BASE}")
    with pytest.raises(AdapterRefused, match="another base"):
        await server.load(store, TWO)
    await server.vllm.swap(server.endpoint, SwapOrder(store.uri(BASE), TOKEN))
    await server.load(store, ONE)
    assert difference(await server.reply(f"{ONE}#{BASE}"), wanted) < CLOSE
    assert await server.reply(f"tiny_v1#{BASE}") == alone, "to the last digit"
    await server.vllm.close()
