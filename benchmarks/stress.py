"""The stress check's load generator beside ``vllm bench serve``, in turns on the same model server.

    make bench-stress ARGS='--rounds=3 --requests=300 --rate=10'

One real vLLM server with the demo's tiny model. Both send the same prompts with the same parameters at the same rate,
as Poisson processes. The percentiles of all rounds together are compared. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prefix_cache import ENGINE_PYTHON, LINES, MODEL, served, talk
from guanaco.submissions import GenerationParams, Percentiles
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.model_servers.model_server import Generation
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.model_servers.vllm_protocol import request_body
from guanaco_server.stress.load import Load, RequestResult, measure_reply, run_load
from guanaco_server.stress.verdict import percentiles
from tests.fixtures.serializer_jobs import KEY, REPO, job_for, make_artifact

PARAMS = GenerationParams(temperature=1.0, max_output_tokens=32)
SEED = 7  # of every request: both draw the same replies
PROMPT_LINES = 12
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
POINTS = ("p50", "p95", "p99")


@dataclass
class Measured:
    """Milliseconds of every request."""

    ttft_ms: list[float]
    tpot_ms: list[float]
    e2e_ms: list[float]

    def add(self, other: Measured) -> None:
        for name in METRICS:
            getattr(self, name).extend(getattr(other, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=10.0)
    options = parser.parse_args()
    ours, theirs = asyncio.run(bench(options.rounds, Load(options.rate, options.requests)))
    found = {
        name: (found_of(getattr(ours, name)), found_of(getattr(theirs, name))) for name in METRICS
    }
    show(found)
    print(
        json.dumps(
            {
                **vars(options),
                "cores": os.cpu_count(),
                **{
                    name: {"ours": asdict_of(mine), "vllm_bench_serve": asdict_of(peer)}
                    for name, (mine, peer) in found.items()
                },
            }
        )
    )


async def bench(rounds: int, load: Load) -> tuple[Measured, Measured]:
    ours, theirs = Measured([], [], []), Measured([], [], [])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tiny_repo(folder / "hub" / REPO)
        store = LocalStore(folder / "artifacts")
        with LocalHub(folder / "hub") as hub:
            await make_artifact(store, job_for(hub))
        async with served(folder, store.uri(KEY), 1) as (endpoint,):
            prompts = make_prompts(load.requests)
            await by_us(endpoint, prompts, load)  # both find the same in the prefix cache
            for number in range(rounds):
                talk(f"round {number + 1} of {rounds}")
                ours.add(await by_us(endpoint, prompts, load))
                theirs.add(await asyncio.to_thread(by_vllm, folder, endpoint, prompts, load))
    return ours, theirs


def make_prompts(count: int) -> list[str]:
    dice = random.Random(1)
    return [
        f"Chat {number}.\n" + "\n".join(dice.choices(LINES, k=PROMPT_LINES)) + "\nLuna:"
        for number in range(count)
    ]


async def by_us(endpoint: str, prompts: Sequence[str], load: Load) -> Measured:
    server = VllmServer()

    async def measure(prompt: str, due: float) -> RequestResult:
        return await measure_reply(
            server, endpoint, Generation(MODEL, prompt, PARAMS, seed=SEED), due
        )

    results = await run_load(measure, prompts, load)
    await server.close()
    if errors := [result.error for result in results if result.error]:
        raise SystemExit(errors[0])
    return Measured(
        *([getattr(one, name) for one in results if getattr(one, name)] for name in METRICS)
    )


def by_vllm(folder: Path, endpoint: str, prompts: Sequence[str], load: Load) -> Measured:
    lines, result = folder / "prompts.jsonl", folder / "result.json"
    lines.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    asked = request_body(Generation(MODEL, prompts[0], PARAMS, seed=SEED))
    own = {"prompt", "model", "stream", "stream_options", "max_tokens"}
    further = {name: value for name, value in asked.items() if name not in own}
    subprocess.run(
        [
            *(str(ENGINE_PYTHON), str(Path(__file__).with_name("stress_peer.py"))),
            *("--prompts", str(lines), "--reply-tokens", str(PARAMS.max_output_tokens)),
            *("--backend", "openai", "--base-url", endpoint, "--endpoint", "/v1/completions"),
            *("--model", MODEL, "--tokenizer", str(folder / "hub" / REPO)),
            *("--num-prompts", str(load.requests), "--request-rate", str(load.rate)),
            *("--extra-body", json.dumps(further), "--disable-tqdm"),
            *("--save-result", "--save-detailed"),
            *("--result-dir", str(folder), "--result-filename", result.name),
        ],
        check=True,
        stdout=sys.stderr,
    )
    told = json.loads(result.read_text())
    measured = Measured([], [], [])
    for ttft, gaps, tokens in zip(told["ttfts"], told["itls"], told["output_lens"], strict=True):
        measured.ttft_ms.append(ttft * 1000)
        measured.e2e_ms.append((ttft + sum(gaps)) * 1000)
        if tokens > 1:
            measured.tpot_ms.append(sum(gaps) * 1000 / (tokens - 1))
    return measured


def found_of(values: Sequence[float]) -> Percentiles:
    found = percentiles(values)
    assert found is not None, "something was measured"
    return found


def asdict_of(found: Percentiles) -> dict[str, float]:
    return {point: round(getattr(found, point), 2) for point in POINTS}


def show(found: dict[str, tuple[Percentiles, Percentiles]]) -> None:
    print(f"{'':<10}" + "".join(f"{f'{point} ours / vLLM, ratio':>32}" for point in POINTS))
    ratios = []
    for name, (mine, peer) in found.items():
        row = f"{name:<10}"
        for point in POINTS:
            a, b = getattr(mine, point), getattr(peer, point)
            ratios.append(a / b)
            row += f"{f'{a:,.1f} / {b:,.1f} ms, {a / b:.2f}':>32}"
        print(row)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
