"""Real vLLM takes another model's weights in place; ``make bench-swap`` does it with every row of formats/shape.py's table."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.deployments.model_server import (
    GeneratedToken,
    Generation,
    HoldsAnotherModel,
    ModelServerFault,
    SwapOrder,
)
from guanaco_server.deployments.vllm_server import VllmServer
from guanaco_server.formats.control import TOKEN_VARIABLE
from guanaco_server.formats.manifest import TENSORS_NAME
from tests.fixtures.artifacts import flip_byte
from tests.fixtures.named_models import LLAMA, make_named_repo
from tests.fixtures.serializer_jobs import IMPORTS, job_for, make_artifact, source_of
from tests.fixtures.world import eventually

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
READY_S = 180  # 13 s on an idle machine
TOKENS = (301, 302)
KEYS = ("01" * 32, "02" * 32)
TOKEN = "the server's"
GREEDY = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=6)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-engine has not been run"),
]


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[LocalCluster]:
    with (folder / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = LocalCluster(
            folder / "cluster",
            folder / "platform.lock",
            0,
            (21_000, 29_999),
            drain_s=0,
            engine_python=PYTHON,
            has_nursery=True,
        )
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.close()


async def serve(cluster: LocalCluster, name: str, artifact: Path) -> str:
    """Start vLLM over the artifact and return its endpoint once it is healthy."""
    command = (
        f"{PYTHON} -m guanaco_server.engine.serve --artifact {artifact.as_uri()} --name tiny_v1"
    )
    limits = "--port {port} --max-model-len 512 --kv-cache-memory-bytes 67108864"
    spec = DeploymentSpec(name, (*command.split(), *limits.split()), IMPORTS)
    await cluster.apply_deployment(replace(spec, secrets={TOKEN_VARIABLE: TOKEN}))
    vllm = VllmServer()
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        state = await cluster.observe(name)
        assert state is not None
        assert state.phase is ReplicaPhase.RUNNING, (await cluster.logs(name))[0][-20:]
        if await vllm.is_healthy(state.endpoint):
            await vllm.close()
            return state.endpoint
        await asyncio.sleep(0.05)
    raise AssertionError("vLLM did not start in time")


async def reply(vllm: VllmServer, endpoint: str, key: str) -> list[GeneratedToken]:
    asked = Generation(f"tiny_v1#{key}", "Hello, how are you?", GREEDY, with_tokens=True)
    return [token async for chunk in vllm.generate(endpoint, asked) for token in chunk.tokens]


async def test_after_a_swap_the_replies_are_those_of_a_fresh_server(tmp_path: Path) -> None:
    store, vllm = LocalStore(tmp_path / "artifacts"), VllmServer()
    texts = [
        make_named_repo(tmp_path / "hub" / "acme" / f"m{token}", token, LLAMA) for token in TOKENS
    ]
    with LocalHub(tmp_path / "hub") as hub:
        for token, key in zip(TOKENS, KEYS, strict=True):
            await make_artifact(
                store, job_for(hub, key=key, model=source_of(hub, f"acme/m{token}"))
            )
    first, second = (tmp_path / "artifacts" / key for key in KEYS)
    async with machine(tmp_path) as cluster:
        endpoint = await serve(cluster, "m-fresh", second)
        fresh = await reply(vllm, endpoint, KEYS[1])
        await cluster.delete("m-fresh")
        endpoint = await serve(cluster, "m-tiny", first)
        before = await reply(vllm, endpoint, KEYS[0])
        assert {token.text for token in before} == {texts[0]}
        assert {token.text for token in fresh} == {texts[1]}
        with pytest.raises(HoldsAnotherModel):
            await reply(vllm, endpoint, KEYS[1])
        with pytest.raises(ModelServerFault, match="404"):
            await vllm.swap(endpoint, SwapOrder(second.as_uri(), "somebody else's"))
        assert await vllm.held_artifact(endpoint) == KEYS[0]

        await vllm.swap(endpoint, SwapOrder(second.as_uri(), TOKEN))
        assert await vllm.held_artifact(endpoint) == KEYS[1]
        assert await reply(vllm, endpoint, KEYS[1]) == fresh, "to the last digit"
        with pytest.raises(HoldsAnotherModel):
            await reply(vllm, endpoint, KEYS[0])
        await vllm.swap(endpoint, SwapOrder(first.as_uri(), TOKEN))
        assert await reply(vllm, endpoint, KEYS[0]) == before, "nothing of the other is left"

        flip_byte(second / TENSORS_NAME, (second / TENSORS_NAME).stat().st_size - 2_000)
        with pytest.raises(ModelServerFault, match="damaged"):
            await vllm.swap(endpoint, SwapOrder(second.as_uri(), TOKEN))
        with pytest.raises(ModelServerFault):
            await reply(vllm, endpoint, KEYS[0])

        async def has_ended() -> bool:
            state = await cluster.observe("m-tiny")
            return state is not None and state.phase is ReplicaPhase.EXITED

        await eventually(has_ended)
    await vllm.close()
