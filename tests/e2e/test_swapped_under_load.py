"""A short run of `make bench-swap ARGS=--proof`: real vLLM, whole processes, artifacts in S3, and a kill in the middle of a swap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.postgres import find_binaries

pytestmark = [pytest.mark.engine, pytest.mark.postgres, pytest.mark.usefixtures("engine_forks")]
ROOT = Path(__file__).parents[2]
SWAPS, KILLS = 3, 1


@pytest.mark.timeout(900)  # 90 s alone on two cores
def test_nobody_is_answered_by_another_model(engine_python: Path) -> None:
    assert find_binaries()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.swap", "--proof", "--store=s3", "--seed=7"),
            *(f"--swaps={SWAPS}", f"--kills={KILLS}", "--seconds=600"),
            f"--engine-python={engine_python}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4_000:]}"
    told = json.loads(done.stdout.splitlines()[-1])["proof"]
    assert told["swaps"] >= SWAPS
    assert sum(told["killed_in_the_middle"].values()) == KILLS
    assert told["turns"] > SWAPS
    assert told["faults"] == []
