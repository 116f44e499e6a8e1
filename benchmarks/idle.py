"""Measures what `guanaco up` takes while nobody uses it: CPU time and memory of the whole tree of processes.

    make bench-idle ARGS='--runs=3 --seconds=60 --database=postgresql'

Each run starts `guanaco up` on a scratch folder, lets it settle (DBOS rests half a minute after the start), and counts for
a while. CPU time is what the kernel charged to the processes, so other work on the machine makes it larger, but not by much.
Memory is the sum of PSS: a page that several processes share counts once. PostgreSQL's own processes are counted apart.
Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.journey import GUANACO, free_port, talk, wait_until_ready

AIM_CORE = 0.01
AIM_MB = 120
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=75.0)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--threads", action="store_true", help="say which threads took the time")
    arguments = parser.parse_args()
    runs = [run(arguments, number) for number in range(1, arguments.runs + 1)]
    figures = {
        name: {
            "median": statistics.median(each[name] for each in runs),
            "least": min(each[name] for each in runs),
            "most": max(each[name] for each in runs),
        }
        for name in runs[0]
    }
    show(figures)
    print(
        json.dumps(
            {
                "database": arguments.database,
                "seconds": arguments.seconds,
                "runs": arguments.runs,
                "cores": os.cpu_count(),
                **figures,
            }
        )
    )


def run(arguments: argparse.Namespace, number: int) -> dict[str, float]:
    talk(f"run {number}: settling for {arguments.settle:g} s")
    with (
        tempfile.TemporaryDirectory() as folder,
        database(arguments.database) as (url, server),
        platform(Path(folder), url) as process,
    ):
        time.sleep(arguments.settle)
        talk(f"run {number}: counting for {arguments.seconds:g} s")
        trees = [tree(process.pid), tree(server) if server else []]
        threads = thread_seconds(process.pid)
        began, before = time.monotonic(), [cpu_s(each) for each in trees]
        time.sleep(arguments.seconds)
        elapsed_s = time.monotonic() - began
        used = [cpu_s(each) - earlier for each, earlier in zip(trees, before, strict=True)]
        if arguments.threads:
            show_threads(thread_seconds(process.pid) - threads, elapsed_s)
        return {
            "core_percent": round(100 * used[0] / elapsed_s, 3),
            "postgresql_core_percent": round(100 * used[1] / elapsed_s, 3),
            "memory_mb": round(sum(map(memory_bytes, trees[0])) / 1e6, 1),
            "processes": len(trees[0]),
        }


@contextmanager
def platform(folder: Path, database_url: str | None) -> Iterator[subprocess.Popen[bytes]]:
    port = free_port()
    surroundings = {
        **os.environ,
        "GUANACO_PROFILE": str(folder / "profile.json"),
        "GUANACO_DATA_DIR": str(folder / "data"),
        "GUANACO_PORT": str(port),
        **({"GUANACO_DATABASE_URL": database_url} if database_url else {}),
    }
    log = (folder / "log").open("wb")
    process = subprocess.Popen([GUANACO, "up"], env=surroundings, stdout=log, stderr=log)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
        yield process
    finally:
        process.terminate()
        process.wait()
        log.close()


@contextmanager
def database(kind: str) -> Iterator[tuple[str | None, int | None]]:
    """The URL of an empty database and the pid of its server; None for SQLite."""
    if kind == "sqlite":
        yield None, None
        return
    from tests.fixtures.postgres import running_server

    with running_server(is_in_memory=True) as server:
        yield server.url(server.create()).replace("+psycopg", ""), server.process.pid


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_s(processes: list[psutil.Process]) -> float:
    """Seconds that the processes and those which they have waited for took so far; a process that has ended since counts there."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_bytes(process: psutil.Process) -> int:
    """PSS; the resident size where the kernel shows no more, as of a process that hides its memory from other users."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def thread_seconds(pid: int) -> Counter[str]:
    """CPU seconds by thread, from nanoseconds that the scheduler counts."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            found[f"{name} {task.name}"] = int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return found


def show_threads(used: Counter[str], elapsed_s: float) -> None:
    for name, nanoseconds in used.most_common(20):
        talk(f"  {name:<32}{nanoseconds / 1e7 / elapsed_s:8.3f} % of a core")


def show(figures: dict[str, Any]) -> None:
    print(f"\n  {'':<34}{'median':>10}{'least':>10}{'most':>10}{'aim':>12}")
    aims = {"core_percent": f"under {100 * AIM_CORE:g}", "memory_mb": f"under {AIM_MB}"}
    for name, figure in figures.items():
        cells = "".join(f"{figure[which]:>10g}" for which in ("median", "least", "most"))
        print(f"  {name:<34}{cells}{aims.get(name, ''):>12}")
    print()


if __name__ == "__main__":
    main()
