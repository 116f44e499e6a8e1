"""Swaps of weights in running model servers: whether they are right, what they take, and whom they disturb.

    make bench-swap ARGS='--only=times --rounds=5'
    make bench-swap ARGS='--proof --swaps=200 --kills=50'

    shapes   each row of formats/shape.py's table, with real vLLM: right after a swap, or refused by name
    times    the swap of a big model beside reading the same bytes alone, from a folder and from S3
    wake     a sleeping submission's first token over a whole platform, by a swap and by a start
    busy     the chat of an engine's other submission while one is swapped, checked or stressed beside it
    proof    random swaps under chat load, with kill -9 of model servers, worker and gateways in the middle of some

Needs the engine environment; the proof needs PostgreSQL too. Prints tables, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.swap.busy import bench_busy
from benchmarks.swap.proof import ProofPlan, prove
from benchmarks.swap.shapes import bench_shapes
from benchmarks.swap.times import bench_times
from benchmarks.swap.wake import bench_wake

ROOT = Path(__file__).parents[2]
PARTS = ("shapes", "times", "wake", "busy")


def main() -> int:
    options = _parser().parse_args()
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="guanaco-swap-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # PostgreSQL runs as another user
        python = options.engine_python
        if options.proof:
            plan = ProofPlan(
                options.swaps,
                options.kills,
                options.seconds,
                options.seed,
                is_on_s3=options.store == "s3",
            )
            figures["proof"] = prove(folder, python, plan)
        else:
            figures |= _measure(folder, python, options)
    print(json.dumps(figures))
    return 1 if figures.get("proof", {}).get("faults") else 0


def _measure(folder: Path, python: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"rounds": options.rounds}
    chosen = options.only or PARTS
    if "shapes" in chosen:
        figures["shapes"] = asyncio.run(bench_shapes(folder / "shapes", python))
    if "times" in chosen:
        figures["times"] = asyncio.run(
            bench_times(folder / "times", python, options.gib, options.rounds, options.s3)
        )
    if "wake" in chosen:
        figures["wake"] = bench_wake(folder / "wake", python, options.rounds)
    if "busy" in chosen:
        figures["busy"] = bench_busy(folder / "busy", python, options.turns)
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=0.5, help="size of the model of `times`")
    parser.add_argument("--s3", choices=["moto", "rclone"], default="moto")
    parser.add_argument("--turns", type=int, default=400, help="of each part and stage of `busy`")
    parser.add_argument("--proof", action="store_true")
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--seconds", type=float, default=2_400, help="the proof ends then at the latest"
    )
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="of the proof")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--engine-python", type=Path, default=ROOT / ".venv-engine" / "bin" / "python"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
