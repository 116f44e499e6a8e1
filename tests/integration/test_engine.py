"""Real vLLM over an artifact of the real serializer, read by our loader."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from guanaco.parameters import MOST_STOPPING_WORDS
from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase
from guanaco_server.clusters.local.cluster import LocalCluster
from guanaco_server.clusters.local.fork_server import ForkServerProcess
from guanaco_server.clusters.local.servers import LOG_NAME, ReplicaRecord, read_instance
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.model_servers.model_server import (
    Chunk,
    Generation,
    ModelServerFault,
    ServerLoad,
    cache_salt_of,
    reward_score,
)
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.submissions.pipeline.checks.fixed_text import perplexity
from tests.fixtures.forked import forked_server
from tests.fixtures.ports import free_port
from tests.fixtures.reward_repos import LIKED, make_reward_repo
from tests.fixtures.serializer_jobs import IMPORTS, KEY, REPO, job_for, make_artifact
from tests.fixtures.world import eventually

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
SALT = "somebody's"
READY_S = 600  # 13 s on an idle machine

pytestmark = [
    pytest.mark.timeout(900),  # the first one waits for the imports
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-engine has not been run"),
]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    make_tiny_repo(tmp_path / "hub" / REPO)
    return tmp_path / "hub" / REPO


@pytest.fixture
def hub(repo: Path) -> Iterator[LocalHub]:
    with LocalHub(repo.parents[1]) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts")


LIMITS = ("--max-model-len", "512", "--kv-cache-memory-bytes", "67108864")


@asynccontextmanager
async def model_server(folder: Path, artifact: Path) -> AsyncIterator[LocalCluster]:
    """vLLM over the artifact, started by its command, in a cluster whose platform lives for as long as this does."""
    with (folder / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = LocalCluster(
            folder / "cluster",
            folder / "platform.lock",
            0,
            (21_000, 29_999),
            drain_s=0,
            engine_python=PYTHON,
        )
        await cluster.start()
        command = f"-m guanaco_server.engine.serve --artifact {artifact.as_uri()} --name tiny_v1"
        further = ("--port", "{port}", *LIMITS)
        spec = DeploymentSpec("m-tiny", (str(PYTHON), *command.split(), *further), IMPORTS)
        await cluster.apply_deployment(spec)
        try:
            yield cluster
        finally:
            await cluster.close()


def _shown(pid: int, field: str) -> str:
    """A field of the process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


async def test_vllm_generates_from_the_artifact_and_ends_with_its_platform(
    hub: LocalHub, store: LocalStore, tmp_path: Path
) -> None:
    await make_artifact(store, job_for(hub))
    async with model_server(tmp_path, tmp_path / "artifacts" / KEY) as cluster:
        endpoint = await healthy(cluster)
        vllm = VllmServer()
        greedy = GenerationParams(
            temperature=0,
            stopping_words=[f"<stop {number}>" for number in range(MOST_STOPPING_WORDS)],
            max_output_tokens=8,
        )
        chunks = [
            chunk async for chunk in vllm.generate(endpoint, Generation("tiny_v1", "Hello", greedy))
        ]
        assert len([text for chunk in chunks for text in chunk.texts]) > 1, "a text a token"
        assert chunks[-1].finish_reason in ("length", "stop")
        assert 0 < chunks[-1].completion_tokens <= 8
        best = GenerationParams(best_of=3, top_k=0, stopping_words=[], max_output_tokens=4)
        chosen = [
            chunk async for chunk in vllm.generate(endpoint, Generation("tiny_v1", "Hello", best))
        ]
        assert [chunk.finish_reason for chunk in chosen] == [chosen[0].finish_reason]
        assert isinstance(chosen[0], Chunk)
        probe = Generation("tiny_v1", "Hello", greedy, with_tokens=True)
        told = [token async for chunk in vllm.generate(endpoint, probe) for token in chunk.tokens]
        assert len(told) == chunks[-1].completion_tokens
        assert all(token.logprob <= 0 for token in told)
        scores = await vllm.score(endpoint, "tiny_v1", ": Hello, how are you?")
        assert 1 < perplexity(scores) < math.inf
        cached = [
            [chunk async for chunk in vllm.generate(endpoint, asked)][-1].cached_tokens
            for asked in (
                Generation(
                    "tiny_v1", "Hello there. " * 20, greedy, cache_salt=cache_salt_of("ada", app)
                )
                for app in ("an-app", "an-app", "another")
            )
        ]
        assert cached[1] > 0, "its own prefix"
        assert (cached[0], cached[2]) == (0, 0), "nobody else's"
        long = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=480)

        async def load_of_a_reply() -> bool:
            """Look at the server while it writes; it may have written all before one has looked."""
            asked = vllm.generate(endpoint, Generation("tiny_v1", "Hi", long))
            async with aclosing(asked) as reply:
                await anext(reply)
                load = await vllm.load(endpoint)
                assert load.waiting == 0
                return load.running == 1 and 0 < load.kv_cache_usage < 1

        await eventually(load_of_a_reply)
        await vllm.close()
        record = ReplicaRecord.read(tmp_path / "cluster" / "m-tiny" / "0")
        assert record is not None
        group = record.leader.group()
        assert len(group) == 2, "the API server, and the engine forked from it"
        server = psutil.Process(record.leader.pid)
        assert server.cmdline()[2:4] == ["guanaco_server.engine.serve", "--artifact"]
        assert server.cwd() == str(tmp_path / "cluster" / "m-tiny" / "0")
        assert record.leader.carries(f"{read_instance(tmp_path / 'cluster')}/m-tiny")
        assert _shown(server.pid, "Seccomp") == "2"
        assert _shown(server.pid, "NoNewPrivs") == "1"
        (tmp_path / "platform.lock").unlink()
        _, alive = await asyncio.to_thread(psutil.wait_procs, group, timeout=30)
        assert not alive


async def test_vllm_scores_candidates_by_a_reward_models_artifact(
    hub: LocalHub, store: LocalStore, repo: Path, tmp_path: Path, fork_server: ForkServerProcess
) -> None:
    """It is forked, as all servers but the first test's are. Here of two labels; tests/e2e/test_served_by_vllm.py has one of one label."""
    labels = 2
    shutil.rmtree(repo)
    make_reward_repo(repo, liked="?", labels=labels)
    await make_artifact(store, job_for(hub))
    port, folder = free_port(), tmp_path / "server"
    arguments = ("--artifact", (tmp_path / "artifacts" / KEY).as_uri(), "--name", "tiny_v1")
    async with forked_server(
        fork_server, folder, *arguments, "--port", str(port), *LIMITS
    ) as server:
        endpoint = f"http://127.0.0.1:{port}"
        vllm = VllmServer()

        async def is_healthy() -> bool:
            assert server.is_running(), (folder / LOG_NAME).read_text()[-3_000:]
            return await vllm.is_healthy(endpoint)

        await eventually(is_healthy, within_s=READY_S)
        process = psutil.Process(server.leader.pid)
        assert process.cmdline()[2:4] == ["guanaco_server.engine.serve", "--artifact"]
        assert len(server.leader.group()) == 2
        assert server.leader.carries(f"tests/{folder.name}")
        assert _shown(process.pid, "Seccomp") == "2"
        assert _shown(process.pid, "NoNewPrivs") == "1"
        prompt = "You: Hello\nLuna:"
        texts = [f"{prompt} I am fine.", f"{prompt} How are you?", f"{prompt} no"]
        logits = await vllm.classify(endpoint, "tiny_v1", texts, SALT)
        assert [len(each) for each in logits] == [labels] * 3
        scores = [reward_score(each) for each in logits]
        assert scores == pytest.approx([0, LIKED, 0], abs=0.1)
        long = f"no? {'no ' * 2_000}"  # of which it can read the last 512 tokens
        cut = await vllm.classify(endpoint, "tiny_v1", [f"{long}no", f"{long}no?"], SALT)
        assert [reward_score(each) for each in cut] == pytest.approx([0, LIKED], abs=0.1)
        with pytest.raises(ModelServerFault, match="404"):
            await vllm.candidates(
                endpoint, Generation("tiny_v1", "Hi", GenerationParams(best_of=2))
            )

        async def is_idle() -> bool:
            return await vllm.load(endpoint) == ServerLoad(running=0, waiting=0)

        await eventually(is_idle)
        await vllm.close()
        (engine,) = (one for one in server.leader.group() if one.pid != process.pid)
        process.kill()

        async def has_ended() -> bool:
            return not server.is_running()

        await eventually(has_ended)
        assert engine.is_running(), "it outlives the API server's kill"
        with pytest.raises(
            ConnectionRefusedError
        ):  # and keeps no port open on which nobody answers
            await asyncio.open_connection("127.0.0.1", port)


async def healthy(cluster: LocalCluster) -> str:
    vllm = VllmServer()
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        state = await cluster.observe("m-tiny")
        assert state is not None
        if state.phase is ReplicaPhase.EXITED:
            break
        if await vllm.is_healthy(state.endpoint):
            await vllm.close()
            return state.endpoint
        await asyncio.sleep(0.1)
    lines, _ = await cluster.logs("m-tiny")
    raise AssertionError("\n".join(lines[-20:]))
