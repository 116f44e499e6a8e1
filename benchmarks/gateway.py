"""The chat gateway beside its peers: the figures of docs/benchmarks.md.

    make bench-gateway ARGS='--rounds=3 --streams=10000'

One core for the gateway; the mock model server, the load and PostgreSQL share the other. Ours does everything:
authentication, the conversation's history of twenty turns, rendering, affinity, both messages durable before the final
event. The peers only pass bytes on. Peers and ours take turns in each round. nginx and vllm-router are left out where
they are not installed. Prints tables, then one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import gateway_stage as stage_of  # noqa: E402
from benchmarks.gateway_stage import Stage  # noqa: E402
from tests.fixtures.postgres import running_server  # noqa: E402

OURS = "/api/v1/conversations/bench-%d/messages"
THEIRS = "/v1/chat/completions"
HISTORY_BYTES = 2_048  # of a peer's prompt: as long as twenty of our turns
MESSAGE_BYTES = 100
CONVERSATIONS = 12_000
OPEN_FILES = 65_536
PEERS_FOLDER = ROOT / ".venv-peers"

Load = Callable[..., dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--only", choices=["streams", "ttft", "open"])
    options = parser.parse_args()
    _raise_file_limit()
    figures: dict[str, Any] = {"rounds": options.rounds}
    with ExitStack() as stack:
        folder = stack.enter_context(stage_of.built())
        postgres = stack.enter_context(
            running_server(fsync="on", synchronous_commit="on", full_page_writes="on")
        )
        _pin_postgres()
        port = stack.enter_context(stage_of.mock(folder, stage_of.free_port()))
        stage = stage_of.prepare(folder, postgres, port, CONVERSATIONS)
        if options.only in (None, "streams", "ttft"):
            figures |= bench_peers(stage, stack, options.rounds, options.seconds, options.only)
        if options.only in (None, "open"):
            figures |= bench_open_streams(stage, options.streams)
    print(json.dumps(figures))


def bench_peers(
    stage: Stage, stack: ExitStack, rounds: int, seconds: float, only: str | None
) -> dict[str, Any]:
    loads = _contestants(stage, stack)
    streams: dict[str, list[float]] = {name: [] for name in loads}
    p50: dict[str, list[float]] = {name: [] for name in loads}
    p99: dict[str, list[float]] = {name: [] for name in loads}
    for name, load in loads.items():
        load("-c", 32, "-d", 2)  # warm
        for _ in range(rounds if only != "ttft" else 0):
            streams[name].append(_without_errors(name, load("-c", 32, "-d", seconds))["rps"])
        for _ in range(rounds if only != "streams" else 0):
            ttft = _without_errors(name, load("-r", 100, "-d", seconds))["ttft_ms"]
            p50[name].append(ttft["p50"])
            p99[name].append(ttft["p99"])
    _show("Streams of 50 tokens a second, 32 clients", streams, "/s")
    _show("Time to first token, 100 turns a second: median", p50, "ms")
    _show("Time to first token, 100 turns a second: p99", p99, "ms")
    return {
        "streams_per_s": _medians(streams),
        "ttft_ms_p50": _medians(p50),
        "ttft_ms_p99": _medians(p99),
    }


def bench_open_streams(stage: Stage, count: int) -> dict[str, Any]:
    """Each with a conversation of its own, a token a second, until all are open and two seconds more."""
    with stage_of.gateway(stage) as (port, pid):
        process = psutil.Process(pid)
        _load(stage, port, OURS, stage.key, "-c", 8, "-d", 1, "-t", 60)
        before = process.memory_info().rss
        peak = [before]
        command = [
            "taskset",
            "-c",
            stage_of.OTHER_CORE,
            str(stage.folder / "load"),
            "-p",
            str(port),
        ]
        command += ["-k", stage.key, "-u", OURS, "-s", "-P", str(MESSAGE_BYTES), "-t", "60"]
        command += ["-y", "1000000", "-H", str(count), "-d", "10", "-R", "400"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            while load.poll() is None:
                peak.append(process.memory_info().rss)
                try:
                    load.wait(0.5)
                except subprocess.TimeoutExpired:
                    continue
            assert load.stdout is not None
            found = json.loads(load.stdout.read().splitlines()[-1])
    per_stream = (max(peak) - before) / count / 1024
    print(f"\n{count:,} open streams", file=sys.stderr)
    print(f"  all begun, errors             {found['steady']:,}, {found['err']}", file=sys.stderr)
    print(f"  tokens a second               {found['tok_s']:,.0f}", file=sys.stderr)
    print(f"  memory of the gateway a stream {per_stream:,.1f} KiB", file=sys.stderr)
    return {
        "open_streams": found["steady"],
        "open_stream_errors": found["err"],
        "open_tokens_per_s": found["tok_s"],
        "kib_per_open_stream": round(per_stream, 1),
    }


def _contestants(stage: Stage, stack: ExitStack) -> dict[str, Load]:
    mock = stage.mock_port
    gateway, _ = stack.enter_context(stage_of.gateway(stage))
    found = {
        "the mock itself": lambda *o: _load(stage, mock, THEIRS, "", *o, bytes_=HISTORY_BYTES),
        "guanaco": lambda *o: _load(stage, gateway, OURS, stage.key, *o),
    }
    fastapi = stack.enter_context(stage_of.fastapi_httpx(stage.folder, mock))
    found["FastAPI + httpx"] = lambda *o: _load(
        stage, fastapi, THEIRS, "", *o, bytes_=HISTORY_BYTES
    )
    if shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"):
        nginx = stack.enter_context(stage_of.nginx(stage.folder, mock))
        found["nginx"] = lambda *o: _load(stage, nginx, THEIRS, "", *o, bytes_=HISTORY_BYTES)
    if python := _peers_python():
        router = stack.enter_context(stage_of.vllm_router(stage.folder, python, mock))
        found["vllm-router"] = lambda *o: _load(stage, router, THEIRS, "", *o, bytes_=HISTORY_BYTES)
    return found


def _load(
    stage: Stage, port: int, path: str, key: str, *options: object, bytes_: int = MESSAGE_BYTES
) -> dict[str, Any]:
    keyed = ("-k", key) if key else ()
    return stage_of.load(stage.folder, "-p", port, "-u", path, *keyed, "-s", "-P", bytes_, *options)


def _peers_python() -> Path | None:
    """An environment of its own for vllm-router; None where it cannot be had."""
    python = PEERS_FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(PEERS_FOLDER, with_pip=True)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "vllm-router==0.1.*"], capture_output=True
    )
    return python if installed.returncode == 0 else None


def _without_errors(name: str, found: dict[str, Any]) -> dict[str, Any]:
    if found["err"]:
        print(f"  {name}: {found['err']} errors, {found['firsterr'][:80]}", file=sys.stderr)
    return found


def _show(title: str, values: dict[str, list[float]], unit: str) -> None:
    if not any(values.values()):
        return
    print(f"\n{title}", file=sys.stderr)
    for name, several in values.items():
        spread = f"{min(several):,.2f} to {max(several):,.2f}"
        print(
            f"  {name:<28} {statistics.median(several):10,.2f} {unit:<3} {spread}", file=sys.stderr
        )


def _medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(each), 3) for name, each in values.items() if each}


def _pin_postgres() -> None:
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            process.cpu_affinity([int(stage_of.OTHER_CORE)])


def _raise_file_limit() -> None:
    """A stream takes two sockets of the gateway. Only root may go beyond the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        most = max(most, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
