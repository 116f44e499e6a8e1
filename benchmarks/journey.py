"""Measures how long the journey takes, and what the platform weighs: the figures of docs/benchmarks.md.

    make bench-journey ARGS=--runs=3
    make bench-journey ARGS='--paths --runs=5'

Each run is a whole `guanaco demo --exit` on a scratch folder; with --paths it is one platform, and a submission for each way to a
model server (journey_paths.py). Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.journey_paths import bench_paths

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / ".venv-engine" / "bin" / "python"
GUANACO = Path(sys.executable).with_name("guanaco")
HEAVY = {"torch", "sqlalchemy", "fastapi", "dbos", "vllm"}
START_TIMEOUT_S = 60
SETTLE_S = 5  # after the start, before memory is read
MIB = 1024**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--paths", action="store_true", help="by the way that a submission takes to a model server"
    )
    parser.add_argument("--engine-python", type=Path, default=ENGINE)
    options = parser.parse_args()
    if options.paths:
        with tempfile.TemporaryDirectory(prefix="guanaco-journey-") as folder:
            paths = bench_paths(Path(folder), options.engine_python, options.runs)
        print(json.dumps({"paths": paths, "runs": options.runs, "cores": os.cpu_count()}))
        return
    runs = [journey(number) for number in range(1, options.runs + 1)]
    figures = {
        "stages_s": {
            name: median(run["stages_s"][name] for run in runs) for name in runs[0]["stages_s"]
        },
        "submit_to_feedback_s": median(run["submit_to_feedback_s"] for run in runs),
        "platform_share_s": median(run["platform_share_s"] for run in runs),
        "spread": {
            name: [min(run[name] for run in runs), max(run[name] for run in runs)]
            for name in ("submit_to_feedback_s", "platform_share_s", "model_server_start_s")
        },
        "help_s": help_s(),
        "sdk_packages": sdk_packages(),
        "idle_mib": idle_mib(),
        "runs": len(runs),
        "cores": os.cpu_count(),
    }
    show(figures)
    print(json.dumps(figures))


def journey(number: int) -> dict[str, Any]:
    """Run `guanaco demo --exit --json` once, and return what it says."""
    talk(f"journey {number}")
    done = subprocess.run(
        [GUANACO, "demo", "--exit", "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def help_s() -> float:
    """The median of five `guanaco --help`, the first of which warms the disk's cache."""
    talk("guanaco --help")
    return median([timed([GUANACO, "--help"]) for _ in range(6)][1:])


def sdk_packages() -> int:
    """Count the packages that a plain `pip install guanaco-platform` brings; fail if a heavy one is among them."""
    talk("installing the SDK and CLI alone")
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
        lock = (ROOT / "requirements" / "platform.txt").read_text().splitlines()
        pins = Path(folder, "pins.txt")  # without hashes: pip would want one of ROOT too
        pins.write_text("\n".join(line.rstrip(" \\") for line in lock if "==" in line))
        subprocess.run([*pip, "-qq", "install", "-c", pins, ROOT], check=True)
        listed = subprocess.check_output([*pip, "list", "--format=json"], text=True)
        subprocess.run([python, "-c", "import guanaco; guanaco.Client"], check=True)
    names = {package["name"].lower() for package in json.loads(listed)} - {"pip", "setuptools"}
    if names & HEAVY:
        sys.exit(f"The SDK's install brings {', '.join(sorted(names & HEAVY))}.")
    return len(names)


def idle_mib() -> float:
    """The resident memory of API and worker with nothing to do."""
    talk("an idle platform")
    with tempfile.TemporaryDirectory() as folder, idle_platform(Path(folder)) as process:
        time.sleep(SETTLE_S)
        return round(psutil.Process(process.pid).memory_info().rss / MIB, 1)


@contextmanager
def idle_platform(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    port = free_port()
    surroundings = {
        **os.environ,
        "GUANACO_PROFILE": str(folder / "profile.json"),  # the first start writes it
        "GUANACO_DATA_DIR": str(folder / "data"),
        "GUANACO_PORT": str(port),
    }
    process = subprocess.Popen(
        [GUANACO, "up"], env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit("`guanaco up` did not become ready.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def timed(command: list[Path | str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def median(values: Iterable[float]) -> float:
    return float(round(statistics.median(values), 3))


def show(figures: dict[str, Any]) -> None:
    print(f"\nMedians of {figures['runs']} runs on {figures['cores']} cores\n")
    rows = [(f"stage {name}", f"{seconds:.1f} s") for name, seconds in figures["stages_s"].items()]
    rows += [
        ("submit to first feedback", f"{figures['submit_to_feedback_s']:.1f} s"),
        ("the platform's own share", f"{figures['platform_share_s']:.1f} s"),
        ("guanaco --help", f"{figures['help_s']:.2f} s"),
        ("packages of SDK and CLI", str(figures["sdk_packages"])),
        ("idle API and worker", f"{figures['idle_mib']:.0f} MiB"),
    ]
    rows += [
        (f"spread of {name}", f"{low:.1f} to {high:.1f} s")
        for name, (low, high) in figures["spread"].items()
    ]
    for name, value in rows:
        print(f"  {name:<34}{value:>16}")
    print()


def talk(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    main()
