"""Conversations of popular characters over four replicas with small KV caches, by how a replica is chosen.

    make bench-characters ARGS='--conversations=60 --seeds=0'

Four real vLLM servers with the demo's tiny model. Characters are drawn by Zipf's law; together their personas are larger
than one replica's cache and smaller than all four. Some users at a time hold a short conversation each, then the next.

    characters      the gateway's own choice: a character's conversations prefer the replicas that hold its persona
    conversation    the gateway's choice of the version before: by conversation alone
    kv_aware        vllm-router 0.1.17, which follows what the replicas say they cached; left out where it cannot be had
    round_robin

Hits are vLLM's own count. Every choice gets the same conversations, under a cache salt of its own. Prints a table, then one
line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles

import httpx
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import gateway_stage  # noqa: E402
from benchmarks.prefix_cache import ENGINE_PYTHON, LINES, MODEL, counts, talk  # noqa: E402
from guanaco.submissions import GenerationParams  # noqa: E402
from guanaco_server.demo.tiny_repo import make_tiny_repo  # noqa: E402
from guanaco_server.deployments.model_servers.model_server import Generation, ModelServerFault  # noqa: E402
from guanaco_server.deployments.model_servers.vllm import VllmServer  # noqa: E402
from guanaco_server.engine.serve import BLOCK_TOKENS  # noqa: E402
from guanaco_server.routing.prefixes import SharedPrefix  # noqa: E402
from guanaco_server.routing.replicas import ReplicaChooser  # noqa: E402
from tests.fixtures.serializer_jobs import REPO  # noqa: E402

REPLICAS = 4
CHARACTERS = 40
ZIPF = 1.1
PERSONA_TOKENS = 640
TURNS = 3
START_S = 600  # four servers import torch on two cores
KV_BYTES = 24 * 1024**2  # 12,288 tokens a replica; the personas are 26,000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
ROUTER = "vllm-router==0.1.17"
ROUTER_FOLDER = ROOT / ".venv-peers"
CHOICES = ("characters", "conversation", "kv_aware", "round_robin")


@dataclass(frozen=True)
class LocalConversation:
    """One conversation: whose, and what the user says in it."""

    id: str
    character: int
    said: tuple[str, ...]


@dataclass
class Figures:
    """``copies`` is the mean number of replicas that answered a character's conversations; ``hottest`` of the most popular one."""

    choice: str
    seed: int
    prompt_tokens: int = 0
    computed_tokens: int = 0
    first_turn_ttfts_ms: list[float] = field(default_factory=list)
    ttfts_ms: list[float] = field(default_factory=list)
    copies: float = 0.0
    hottest: int = 0
    busiest: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=240)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--choices", default=",".join(CHOICES))
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found = asyncio.run(
        bench(options.conversations, options.at_once, seeds, options.choices.split(","))
    )
    show(found)
    print(
        json.dumps(
            {
                "conversations": options.conversations,
                "at_once": options.at_once,
                "replicas": REPLICAS,
                "cores": os.cpu_count(),
                "runs": [
                    {k: v for k, v in asdict(each).items() if not isinstance(v, list)}
                    | {"ttft_p50_ms": median(each.ttfts_ms), "first_p50_ms": median(each.first_turn_ttfts_ms)}
                    for each in found
                ],
            }
        )
    )  # fmt: skip


async def bench(
    conversations: int, at_once: int, seeds: Sequence[int], choices: Sequence[str]
) -> list[Figures]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        make_tiny_repo(folder / "hub" / REPO)
        tokenizer = Tokenizer.from_file(str(folder / "hub" / REPO / "tokenizer.json"))
        python = router_python() if "kv_aware" in choices else None
        talk(f"starting {REPLICAS} x vLLM")
        sources = stack.enter_context(replicas(folder, folder / "hub" / REPO))
        found = []
        routed = ""
        if python:
            routed = f"http://127.0.0.1:{stack.enter_context(router(folder, python, sources))}"
        for seed in seeds:
            talks = conversations_of(seed, conversations)
            personas = personas_of(seed, tokenizer)
            for choice in choices:
                if choice != "kv_aware" or routed:
                    talk(f"seed {seed}: {choice}")
                    run = Run(choice, seed, tuple(sources), personas, routed)
                    found.append(await run.measure(talks, at_once))
        return found


def conversations_of(seed: int, count: int) -> list[LocalConversation]:
    dice = random.Random(f"talks {seed}")
    weights = [1 / (rank + 1) ** ZIPF for rank in range(CHARACTERS)]
    drawn = dice.choices(range(CHARACTERS), weights, k=count)
    return [
        LocalConversation(
            f"conv_{seed}_{number}", character, tuple(dice.choice(LINES) for _ in range(TURNS))
        )
        for number, character in enumerate(drawn)
    ]


def personas_of(seed: int, tokenizer: Tokenizer) -> list[str]:
    dice = random.Random(f"personas {seed}")
    found = []
    for number in range(CHARACTERS):
        text = f"{number}: "
        while len(tokenizer.encode(text).ids) < PERSONA_TOKENS:
            text += dice.choice(LINES) + " "
        found.append(text + "\n")
    return found


class Run:
    """All conversations of a seed with one choice of the replica."""

    def __init__(
        self,
        choice: str,
        seed: int,
        endpoints: tuple[str, ...],
        personas: Sequence[str],
        router: str,
    ) -> None:
        self._choice = choice
        self._endpoints = endpoints
        self._personas = personas
        self._router = router
        self._salt = f"{choice} {seed}"
        self._figures = Figures(choice, seed)
        self._chooser = ReplicaChooser(256, 60.0)
        self._numbers = itertools.count()
        self._vllm = VllmServer()
        self._used: dict[int, set[str]] = defaultdict(set)
        self._asked: dict[str, int] = dict.fromkeys(endpoints, 0)

    async def measure(self, talks: Sequence[LocalConversation], at_once: int) -> Figures:
        before = await counts(self._endpoints)
        left = iter(talks)

        async def user() -> None:
            for one in left:
                await self._hold(one)

        await asyncio.gather(*(user() for _ in range(at_once)))
        await self._vllm.close()
        done = await counts(self._endpoints) - before
        figures = self._figures
        figures.prompt_tokens = int(done.queries)
        figures.computed_tokens = int(done.queries - done.hits)
        if self._choice != "kv_aware":
            figures.copies = round(mean(len(used) for used in self._used.values()), 2)
            figures.hottest = len(self._used[0])
            figures.busiest = round(
                max(self._asked.values()) / (sum(self._asked.values()) / REPLICAS), 2
            )
        return figures

    async def _hold(self, one: LocalConversation) -> None:
        text = self._personas[one.character]
        prefix = SharedPrefix(f"{self._salt} {one.character}", PERSONA_TOKENS)
        shared = prefix if self._choice == "characters" else None
        for turn, said in enumerate(one.said):
            text += f"User: {said}\nLuna:"
            endpoint = self._choose(one.id, shared)
            self._used[one.character].add(endpoint)
            self._asked[endpoint] = self._asked.get(endpoint, 0) + 1
            text += await self._say(endpoint, one, shared, text, turn)

    def _choose(self, conversation: str, prefix: SharedPrefix | None) -> str:
        if self._choice == "kv_aware":
            return self._router
        if self._choice == "round_robin":
            return self._endpoints[next(self._numbers) % REPLICAS]
        chosen = self._chooser.choose(conversation, self._endpoints, prefix=prefix)
        assert chosen is not None
        return chosen

    async def _say(
        self,
        endpoint: str,
        one: LocalConversation,
        prefix: SharedPrefix | None,
        prompt: str,
        turn: int,
    ) -> str:
        reply, first, started = "", 0.0, time.perf_counter()
        params = GenerationParams(temperature=1.0, max_output_tokens=16)
        asked = Generation(MODEL, prompt, params, seed=turn, cache_salt=self._salt)
        with self._chooser.ask(endpoint, self._endpoints, key=one.id, prefix=prefix) as ask:
            async for chunk in self._vllm.generate(endpoint, asked):
                first = first or time.perf_counter()
                reply += chunk.text
                if chunk.finish_reason is not None:
                    ask.note_tokens(
                        chunk.prompt_tokens, chunk.cached_tokens, chunk.completion_tokens
                    )
            ask.note_end()
        took_ms = (first - started) * 1_000
        self._figures.ttfts_ms.append(took_ms)
        if turn == 0:
            self._figures.first_turn_ttfts_ms.append(took_ms)
        return reply + "\n"


def router_python() -> Path | None:
    """An environment of its own for vllm-router; None where it cannot be had."""
    python = ROUTER_FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(ROUTER_FOLDER, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", ROUTER], capture_output=True, text=True
    )
    if done.returncode:
        talk(f"{ROUTER} cannot be installed, so kv_aware is left out: {done.stderr[-300:]}")
        return None
    return python


@contextmanager
def replicas(folder: Path, model: Path) -> Iterator[dict[str, str]]:
    """vLLM's own servers, which publish what they cache and evict: the address of these events by endpoint.

    They are started by hand, since the platform's engine may open no port but its own.
    """
    ports = {gateway_stage.free_port(): gateway_stage.free_port() for _ in range(REPLICAS)}
    environment = {**os.environ, **ENVIRONMENT}
    with ExitStack() as stack:
        started = []
        for port, events in ports.items():
            log = folder / f"vllm-{port}.log"
            command: list[str | Path] = [ENGINE_PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
            command += ["--model", model, "--served-model-name", MODEL, "--port", str(port)]
            command += ["--host", "127.0.0.1", "--max-model-len", "2048", "--enforce-eager"]
            command += ["--block-size", str(BLOCK_TOKENS), "--enable-prompt-tokens-details"]
            command += ["--kv-cache-memory-bytes", str(KV_BYTES)]
            config = {"enable_kv_cache_events": True, "publisher": "zmq"}
            command += [
                "--kv-events-config",
                json.dumps({**config, "endpoint": f"tcp://*:{events}"}),
            ]
            process = stack.enter_context(running(command, log, environment))
            started.append((port, process, log))
        for port, process, log in started:
            wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield {
            f"http://127.0.0.1:{port}": f"tcp://127.0.0.1:{events}"
            for port, events in ports.items()
        }


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    except ModelServerFault:
        talk(log.read_text(errors="replace")[-3_000:])
        raise
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:  # vLLM swallows the signal while it starts
            process.kill()


@contextmanager
def router(folder: Path, python: Path, sources: dict[str, str]) -> Iterator[int]:
    """vllm-router with kv_aware over the endpoints; its port."""
    port, log = gateway_stage.free_port(), folder / "vllm-router.log"
    command: list[str | Path] = [python, "-m", "vllm_router.launch_router"]
    command += ["--worker-urls", *sources, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "kv_aware", "--prometheus-port", str(gateway_stage.free_port())]
    command += ["--kv-event-block-size", str(BLOCK_TOKENS), "--kv-event-model", MODEL]
    for endpoint, events in sources.items():
        command += ["--kv-event-source", f"{endpoint}={events}"]
    with running(command, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield port


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} does not answer:\n{log.read_text()[-4_000:]}")


def show(found: Sequence[Figures]) -> None:
    print(
        f"{'':<14}{'seed':>5}{'prompt tokens':>15}{'computed':>10}{'of all':>8}"
        f"{'TTFT p50':>10}{'p90':>8}{'1st turn p50':>14}{'replicas a character':>22}{'of the hottest':>16}{'busiest':>9}"
    )
    for each in found:
        print(
            f"{each.choice:<14}{each.seed:>5}{each.prompt_tokens:>15,}{each.computed_tokens:>10,}"
            f"{each.computed_tokens / each.prompt_tokens:>8.1%}{median(each.ttfts_ms):>7.0f} ms"
            f"{quantiles(each.ttfts_ms, n=10)[-1]:>5.0f} ms{median(each.first_turn_ttfts_ms):>11.0f} ms"
            f"{each.copies:>22}{each.hottest:>16}{each.busiest:>9}"
        )


if __name__ == "__main__":
    main()
