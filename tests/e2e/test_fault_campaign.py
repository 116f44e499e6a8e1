"""A short run of `make bench-faults`: whole processes, a few faults from a seed, and nothing lost. The long one is not for CI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.postgres import find_binaries

pytestmark = [pytest.mark.engine, pytest.mark.postgres]
ROOT = Path(__file__).parents[2]
FAULTS = 8


@pytest.mark.timeout(900)  # the campaign waits for its platform's last answers, at most
def test_nothing_is_lost_doubled_or_orphaned(engine_python: Path, tmp_path: Path) -> None:
    assert find_binaries()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.faults", "--seed=7", f"--faults={FAULTS}"),
            *("--cluster=local", "--seconds=300", "--users=4", f"--engine-python={engine_python}"),
            f"--keep={tmp_path}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4_000:]}"
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["faults"] >= FAULTS
    assert told["told"]["conversations"] > 0
    assert not any(told["found"].values())
