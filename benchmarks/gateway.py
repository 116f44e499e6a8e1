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
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
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

GUANACO = "guanaco"
OURS = "/api/v1/conversations/talk-%d/messages"
OPEN = "/api/v1/conversations/open-%d/messages"
THEIRS = "/v1/chat/completions"
HISTORY_BYTES = 2_048  # of a peer's prompt: as long as twenty of our turns
MESSAGE_BYTES = 100
TALKED_IN = (
    4_096  # conversations of twenty turns, in turn; a run of seconds makes none of them much longer
)
OPEN_FILES = 65_536
SPARE_FILES = 256  # of a process, for all that is no stream
STREAM_TOKENS = 60
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
        stage = stage_of.prepare(
            folder, postgres, port, {"talk": TALKED_IN, "open": options.streams}
        )
        if options.only in (None, "streams", "ttft"):
            figures |= bench_peers(stage, stack, options.rounds, options.seconds, options.only)
        if options.only in (None, "open"):
            figures |= bench_open_streams(stage, options.streams)
    print(json.dumps(figures))


def bench_peers(
    stage: Stage, stack: ExitStack, rounds: int, seconds: float, only: str | None
) -> dict[str, Any]:
    loads, pid = _contestants(stage, stack)
    cpu_us: list[float] = []  # of our processes, for each stream
    streams: dict[str, list[float]] = {name: [] for name in loads}
    p50: dict[str, list[float]] = {name: [] for name in loads}
    p99: dict[str, list[float]] = {name: [] for name in loads}
    for name, load in loads.items():
        load("-c", 32, *(("-d", 120, "-N", TALKED_IN) if name == GUANACO else ("-d", 4)))  # warm
    for _ in range(rounds):
        for name, load in loads.items() if only != "ttft" else ():
            before_s = _cpu_s(pid)
            found = _without_errors(name, load("-c", 32, "-d", seconds))
            streams[name].append(found["rps"])
            if name == GUANACO:
                cpu_us.append((_cpu_s(pid) - before_s) * 1e6 / found["ok"])
        for name, load in loads.items() if only != "streams" else ():
            ttft = _without_errors(name, load("-r", 100, "-d", seconds))["ttft_ms"]
            p50[name].append(ttft["p50"])
            p99[name].append(ttft["p99"])
    _show("Streams of 50 tokens a second, 32 clients", streams, "/s")
    _show("Processor time of a stream", {GUANACO: cpu_us}, "µs")
    _show("Time to first token, 100 turns a second: median", p50, "ms")
    _show("Time to first token, 100 turns a second: p99", p99, "ms")
    return {
        "streams_per_s": _medians(streams),
        "cpu_us_per_stream": _medians({GUANACO: cpu_us}),
        "ttft_ms_p50": _medians(p50),
        "ttft_ms_p99": _medians(p99),
    }


def bench_open_streams(stage: Stage, count: int) -> dict[str, Any]:
    """Each with a conversation of its own, a token a second, until all are open and ten seconds more.

    Where the system allows a process too few files for two sockets a stream, several gateway processes share the core.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    gateways = math.ceil(2 * count / (most - SPARE_FILES))
    with stage_of.gateway(stage, gateways=gateways) as (port, pid):
        processes = _gateway_processes(pid, gateways)
        _load(stage, port, OURS, stage.key, "-c", 8 * gateways, "-d", 1)  # warm
        before = _memory_bytes(processes)
        peak = [before]
        command = ["taskset", "-c", stage_of.OTHER_CORE, stage.folder / "load", "-p", port]
        command += ["-k", stage.key, "-u", OPEN, "-s", "-P", MESSAGE_BYTES, "-t", STREAM_TOKENS]
        command += ["-y", 1_000_000, "-H", count, "-d", 10, "-R", 400]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as load:
            while load.poll() is None:
                peak.append(_memory_bytes(processes))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    load.wait(0.5)
            assert load.stdout is not None
            found = json.loads(load.stdout.read().splitlines()[-1])
    per_stream = (max(peak) - before) / count / 1024
    print(f"\n{count:,} open streams, gateway processes: {gateways}", file=sys.stderr)
    print(f"  all begun, errors              {found['steady']:,}, {found['err']}", file=sys.stderr)
    print(f"  tokens a second                {found['tok_s']:,.0f}", file=sys.stderr)
    print(f"  memory of the gateway a stream {per_stream:,.1f} KiB", file=sys.stderr)
    return {
        "open_streams": found["steady"],
        "open_stream_errors": found["err"],
        "open_stream_gateways": gateways,
        "open_tokens_per_s": found["tok_s"],
        "kib_per_open_stream": round(per_stream, 1),
    }


def _gateway_processes(pid: int, count: int) -> list[psutil.Process]:
    """The platform's own and those beside it, once each listens."""
    platform = psutil.Process(pid)
    while True:
        found = [platform, *platform.children()]
        if len(found) == count and all(
            any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))
            for process in found
        ):
            return found
        time.sleep(0.1)


def _cpu_s(pid: int) -> float:
    """Processor time of a gateway and its tokenizers' processes."""
    gateway = psutil.Process(pid)
    times = [process.cpu_times() for process in (gateway, *gateway.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _memory_bytes(processes: list[psutil.Process]) -> int:
    return sum(process.memory_info().rss for process in processes)


def _contestants(stage: Stage, stack: ExitStack) -> tuple[dict[str, Load], int]:
    """Start those who take part, and return their loads with our gateway's process id."""
    mock = stage.mock_port
    gateway, pid = stack.enter_context(stage_of.gateway(stage))
    found = {
        "the mock itself": lambda *o: _load(stage, mock, THEIRS, "", *o, bytes_=HISTORY_BYTES),
        GUANACO: lambda *o: _load(stage, gateway, OURS, stage.key, "-n", TALKED_IN, *o),
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
    return found, pid


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
    """Some may go beyond the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (most, max(most, OPEN_FILES)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


if __name__ == "__main__":
    main()
