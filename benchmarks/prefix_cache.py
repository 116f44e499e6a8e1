"""vLLM's prefix cache over two replicas: conversations that keep to one replica, against round robin.

    make bench-prefix ARGS='--conversations=12 --turns=20'

Two real vLLM servers with the demo's tiny model, started as replicas of one deployment by the local cluster. Every
conversation's prompt grows turn by turn, as chat does, and the conversations are interleaved. Hits are vLLM's own
count (``vllm:prefix_cache_hits``). What could hit is counted here: whole blocks of a prompt that the turn before
held already, its reply included. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import itertools
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from guanaco.submissions import GenerationParams  # noqa: E402
from guanaco_server.artifacts.stores.local import LocalStore  # noqa: E402
from guanaco_server.clusters.cluster import DeploymentSpec  # noqa: E402
from guanaco_server.clusters.local.cluster import LocalCluster  # noqa: E402
from guanaco_server.demo.corpus import CORPUS  # noqa: E402
from guanaco_server.demo.hub_server import LocalHub  # noqa: E402
from guanaco_server.demo.tiny_repo import make_tiny_repo  # noqa: E402
from guanaco_server.deployments.model_servers.model_server import Generation  # noqa: E402
from guanaco_server.deployments.model_servers.vllm import VllmServer  # noqa: E402
from guanaco_server.engine.serve import BLOCK_TOKENS  # noqa: E402
from guanaco_server.routing.replicas import rendezvous  # noqa: E402
from tests.fixtures.serializer_jobs import IMPORTS, KEY, REPO, job_for, make_artifact  # noqa: E402

ENGINE_PYTHON = Path(
    os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python")
)
NAME = "m-tiny"
MODEL = "tiny_v1"
REPLICAS = 2
READY_S = 240
AT_ONCE = 4
MAX_MODEL_TOKENS = 2_048
KV_BYTES = 256 * 1024**2  # 128,000 tokens: nothing that could hit is evicted
REPLY = GenerationParams(temperature=1.0, max_output_tokens=32)
LINES = CORPUS.strip().splitlines()

Choice = Callable[[str, Sequence[str]], AbstractContextManager[str]]


@dataclass(frozen=True)
class CacheCounts:
    """In tokens, summed over the replicas."""

    queries: float = 0.0
    hits: float = 0.0

    def __sub__(self, other: CacheCounts) -> CacheCounts:
        return CacheCounts(self.queries - other.queries, self.hits - other.hits)


@dataclass(frozen=True)
class Figures:
    """``of_possible`` is the share of the tokens that could hit which did."""

    choice: str
    prompt_tokens: int
    possible_tokens: int
    hit_tokens: int
    computed_tokens: int
    of_possible: float
    of_all: float
    ttft_p50_ms: float


@dataclass
class Conversation:
    """``known_tokens`` of its text were computed at the turn before."""

    id: str
    text: str
    known_tokens: int = 0
    ttfts_ms: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    possible_tokens: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    figures = asyncio.run(bench(options.conversations, options.turns))
    show(figures)
    print(
        json.dumps(
            {
                "conversations": options.conversations,
                "turns": options.turns,
                "replicas": REPLICAS,
                "cores": os.cpu_count(),
                **{each.choice: asdict(each) for each in figures},
            }
        )
    )


async def bench(conversations: int, turns: int) -> list[Figures]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tiny_repo(folder / "hub" / REPO)
        tokenizer = Tokenizer.from_file(str(folder / "hub" / REPO / "tokenizer.json"))
        talk("serializing")
        store = LocalStore(folder / "artifacts")
        with LocalHub(folder / "hub") as hub:
            await make_artifact(store, job_for(hub))
        async with served(folder, store.uri(KEY), REPLICAS) as endpoints:
            return [
                await measure(choice, choose, endpoints, tokenizer, conversations, turns)
                for choice, choose in (("sticky", sticky), ("round_robin", round_robin()))
            ]


@contextmanager
def sticky(conversation: str, endpoints: Sequence[str]) -> Iterator[str]:
    yield rendezvous(conversation, endpoints)[0]


def round_robin() -> Choice:
    numbers = itertools.count()

    @contextmanager
    def choose(_: str, endpoints: Sequence[str]) -> Iterator[str]:
        yield endpoints[next(numbers) % len(endpoints)]

    return choose


@asynccontextmanager
async def served(folder: Path, artifact: str, replicas: int) -> AsyncIterator[tuple[str, ...]]:
    """The endpoints of that many replicas, once all are healthy."""
    with (folder / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = LocalCluster(
            folder / "cluster", folder / "platform.lock", 0, (21_000, 29_999), drain_s=0
        )
        await cluster.start()
        command = (
            *(str(ENGINE_PYTHON), "-m", "guanaco_server.engine.serve"),
            *("--artifact", artifact, "--name", MODEL, "--port", "{port}"),
            *("--max-model-len", str(MAX_MODEL_TOKENS)),
            *("--kv-cache-memory-bytes", str(KV_BYTES)),
        )
        talk(f"starting {replicas} x vLLM")
        try:
            await cluster.apply_deployment(
                DeploymentSpec(NAME, command, dict(IMPORTS), replicas=replicas)
            )
            yield await ready(cluster)
        finally:
            await cluster.close()


async def ready(cluster: LocalCluster) -> tuple[str, ...]:
    vllm = VllmServer()
    async with asyncio.timeout(READY_S):
        while True:
            state = await cluster.observe(NAME)
            assert state is not None
            if not state.is_settled:
                lines, _ = await cluster.logs(NAME)
                raise SystemExit("\n".join([*lines[-20:], "A replica ended."]))
            endpoints = tuple(each.endpoint for each in state.replicas)
            if all([await vllm.is_healthy(endpoint) for endpoint in endpoints]):
                await vllm.close()
                return endpoints
            await asyncio.sleep(0.5)


async def measure(
    choice: str,
    choose: Choice,
    endpoints: tuple[str, ...],
    tokenizer: Tokenizer,
    conversations: int,
    turns: int,
) -> Figures:
    """All conversations, turn by turn, in any order, a few at once; no two choices share a block."""
    vllm, dice = VllmServer(), random.Random(choice)
    talking = [
        Conversation(f"{choice}-{number}", f"{choice} {number}: Luna keeps a lighthouse.\n")
        for number in range(conversations)
    ]
    places = asyncio.Semaphore(AT_ONCE)

    async def take_turn(conversation: Conversation) -> None:
        async with places:
            with choose(conversation.id, endpoints) as endpoint:
                said = " ".join(dice.choices(LINES, k=2))
                await say(vllm, endpoint, tokenizer, conversation, said)

    before = await counts(endpoints)
    for turn in range(turns):
        talk(f"{choice}: turn {turn + 1} of {turns}")
        everybody = dice.sample(talking, len(talking))  # in turn, round robin would be sticky too
        await asyncio.gather(*(take_turn(each) for each in everybody))
    done = await counts(endpoints) - before
    await vllm.close()
    prompt_tokens = sum(each.prompt_tokens for each in talking)
    if done.queries != prompt_tokens:
        raise SystemExit(f"vLLM was asked {done.queries:g} tokens, and {prompt_tokens} were sent.")
    possible = sum(each.possible_tokens for each in talking)
    return Figures(
        choice,
        prompt_tokens,
        possible,
        int(done.hits),
        int(done.queries - done.hits),
        round(done.hits / possible, 4),
        round(done.hits / prompt_tokens, 4),
        round(statistics.median(ms for each in talking for ms in each.ttfts_ms), 1),
    )


async def say(
    vllm: VllmServer, endpoint: str, tokenizer: Tokenizer, conversation: Conversation, said: str
) -> None:
    """One turn. vLLM computes the last token of a prompt again in any case; of a reply it may have computed the last one, the stopping word included."""
    conversation.text += f"User: {said}\nLuna:"
    started, first, prompt_tokens, finish = time.perf_counter(), 0.0, 0, ""
    prompt = conversation.text
    async for chunk in vllm.generate(endpoint, Generation(MODEL, prompt, REPLY)):
        first = first or time.perf_counter()
        conversation.text += chunk.text
        prompt_tokens += chunk.prompt_tokens
        finish = chunk.finish_reason or finish
    could = min(conversation.known_tokens, prompt_tokens - 1)
    conversation.possible_tokens += could // BLOCK_TOKENS * BLOCK_TOKENS
    conversation.prompt_tokens += prompt_tokens
    conversation.ttfts_ms.append((first - started) * 1_000)
    replied = conversation.text + ("\n" if finish == "stop" else "")
    conversation.known_tokens = len(tokenizer.encode(replied).ids)
    conversation.text += "\n"


async def counts(endpoints: Iterable[str]) -> CacheCounts:
    async with httpx.AsyncClient(trust_env=False) as client:
        texts = [(await client.get(f"{endpoint}/metrics")).text for endpoint in endpoints]
    return CacheCounts(
        sum(counter(text, "vllm:prefix_cache_queries") for text in texts),
        sum(counter(text, "vllm:prefix_cache_hits") for text in texts),
    )


def counter(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}_total\{{.*\}} (\S+)$", text, re.M))


def show(figures: Iterable[Figures]) -> None:
    print(
        f"{'':<12}{'prompt tokens':>14}{'could hit':>11}{'hit':>9}{'of those':>10}{'of all':>8}{'computed':>10}{'TTFT p50':>10}"
    )
    for each in figures:
        print(
            f"{each.choice:<12}{each.prompt_tokens:>14,}{each.possible_tokens:>11,}{each.hit_tokens:>9,}"
            f"{each.of_possible:>10.1%}{each.of_all:>8.1%}{each.computed_tokens:>10,}{each.ttft_p50_ms:>7.1f} ms"
        )


def talk(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
