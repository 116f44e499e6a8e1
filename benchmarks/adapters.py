"""Measures what it costs one reply at a time that its model server takes LoRA adapters, none of which it is asked for.

Two engines of the demo's model in this process, without adapters and with them, reply in turn to the same prompts with the same seeds. It is measured
in processor time, so that other work on the machine disturbs it little. Runs in the engine's environment:

    make bench-adapters ARGS='--pairs=60'
    make bench-adapters ARGS=--vllm-layers      with the forward of vLLM's own layers for adapters
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS = 64
WARM_UP = 6
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--vllm-layers", action="store_true")
    parser.add_argument("--model", type=Path, help="a folder; the demo's model without it")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="guanaco-adapters-") as scratch:
        engines = _engines(options.model or _demo_model(Path(scratch)), options.vllm_layers)
        for number in range(WARM_UP):
            for engine in engines.values():
                _reply(engine, number)
        costs: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(options.pairs):
            said = set()
            for name in sorted(engines, reverse=bool(number % 2)):
                cost, tokens = _reply(engines[name], WARM_UP + number)
                costs[name].append(cost)
                said.add(tokens)
            if len(said) > 1:
                raise SystemExit("The two engines gave other tokens.")
    _show(costs)


def _demo_model(folder: Path) -> Path:
    from guanaco_server.demo.tiny_repo import make_tiny_repo

    make_tiny_repo(folder / "tiny")
    return folder / "tiny"


def _engines(model: Path, has_vllm_layers: bool) -> dict[str, Any]:
    import torch
    from vllm import LLM
    from vllm.lora.layers.column_parallel_linear import ColumnParallelLinearWithLoRA
    from vllm.lora.layers.row_parallel_linear import RowParallelLinearWithLoRA

    from guanaco_server.engine.adapters import LORA_MODULES
    from guanaco_server.engine.vllm_internals import add_adapters_by_row

    layers = (ColumnParallelLinearWithLoRA, RowParallelLinearWithLoRA)
    own = [layer.forward for layer in layers]
    add_adapters_by_row()
    if has_vllm_layers:
        for layer, forward in zip(layers, own, strict=True):
            layer.forward = forward
    torch.set_num_threads(1)
    common: dict[str, Any] = {
        "model": str(model),
        "enforce_eager": True,
        "max_model_len": 512,
        "block_size": 32,
        "kv_cache_memory_bytes": 64 << 20,
    }
    adapters: dict[str, Any] = {
        "enable_lora": True,
        "max_loras": 8,
        "max_cpu_loras": 64,
        "max_lora_rank": 64,
        "lora_target_modules": sorted(LORA_MODULES),
    }
    return {"without": LLM(**common), "with": LLM(**common, **adapters)}


def _reply(engine: Any, number: int) -> tuple[float, tuple[int, ...]]:
    """Return the processor time of a token in milliseconds, and the tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.8, seed=number, max_tokens=TOKENS, ignore_eos=True)
    prompt = {"prompt_token_ids": [5, 6, 7, number % 900, 9, 10, 11, 12]}
    began = time.process_time()
    (reply,) = engine.generate(prompt, params, use_tqdm=False)
    cost = (time.process_time() - began) / TOKENS * 1e3
    return cost, tuple(reply.outputs[0].token_ids)


def _show(costs: dict[str, list[float]]) -> None:
    for name, found in costs.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name} adapters: {middle:.2f} ms a token (quartiles {low:.2f} to {high:.2f})")
    pairs = list(zip(costs["with"], costs["without"], strict=True))
    more = statistics.median(one - other for one, other in pairs)
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"median of {len(pairs)} pairs: {more:+.2f} ms, {ratio:.3f} times")


if __name__ == "__main__":
    main()
