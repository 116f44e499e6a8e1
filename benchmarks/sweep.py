"""Many variants of one repo on one model server: how long until the last is deployed, what the server weighs, and each is rated.

    make bench-sweep ARGS='--variants=32 --runs=3'

Each run is a platform of its own with real vLLM, and its first submission: nothing is imported before. The memory of the model server is
read when one variant alone has been deployed, and when all have been rated. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.journey_paths import Repos
from benchmarks.swap.figures import show, spread, talk
from benchmarks.swap.stage import PARAMS, SETTINGS
from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.competitions import OPEN, AssignmentKind, AssignmentRule, CompetitionRequest
from guanaco.submissions import Status, SubmissionRequest
from guanaco.sweeps import Sweep, SweepRequest
from guanaco_server.demo.hub_server import LocalHub
from tests.fixtures.up import Up

ROOT = Path(__file__).parents[1]
MIB = 1024**2
RULES = CompetitionRequest(
    name="Open",
    starts_at=datetime(2026, 1, 1, tzinfo=UTC),
    assignment=AssignmentRule(kind=AssignmentKind.UNIFORM),
)
WITHIN_S = 600.0
USERS_PER_VARIANT = 40  # far more than it takes until each variant has met one
UNLIKE_A_DEMO = ("stress_", "max_model_servers", "preempt_quiet_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--engine-python", type=Path, default=ROOT / ".venv-engine" / "bin" / "python"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="guanaco-sweep-") as scratch,
        LocalHub(Path(scratch) / "hub") as hub,
    ):
        folder = Path(scratch)
        settings: dict[str, object] = {
            name: value for name, value in SETTINGS.items() if not name.startswith(UNLIKE_A_DEMO)
        }
        settings |= {"hub_endpoint": hub.url, "engine_python": str(options.engine_python)}
        repo = Repos(folder / "hub").make(0)
        runs = [
            _run(folder / f"up-{number}", settings | {"gateways": 1}, repo, options.variants)
            for number in range(options.runs)
        ]
    taken = {name: [run[name] for run in runs] for name in runs[0]}
    show(f"{options.variants} variants of one repo", taken)
    figures = {name: spread(values) for name, values in taken.items()}
    print(json.dumps({"variants": options.variants, "cores": os.cpu_count()} | figures))


def _run(folder: Path, settings: dict[str, object], repo: str, count: int) -> dict[str, float]:
    up = Up(folder, **settings)
    up.start(is_cold=True)
    try:
        return _sweep(up, repo, count)
    finally:
        up.stop()


def _sweep(up: Up, repo: str, count: int) -> dict[str, float]:
    client, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    # the default rule would send users to the newest variant alone, until it has its ratings
    up.client().put_competition(OPEN, RULES)
    began = time.perf_counter()
    sweep = client.submit_sweep(_request(repo, count))
    first_s, alone_mib, starts = 0.0, 0.0, set[int]()
    while (now := client.sweep(sweep.id)).is_in_progress:
        assert time.perf_counter() - began < WITHIN_S, f"not deployed within {WITHIN_S:g} s"
        servers = up.model_servers()
        starts |= {server.pid for server in servers}
        if now.count(Status.DEPLOYED) and not alone_mib:
            first_s, alone_mib = time.perf_counter() - began, _pss_mib(servers)
        time.sleep(0.1)
    last_s = time.perf_counter() - began
    assert now.count(Status.DEPLOYED) == count, [one.failure for one in now.submissions]
    talk(f"  first after {first_s:.1f} s, all {count} after {last_s:.1f} s")
    users = _rate_each(app, client, now)
    servers = up.model_servers()
    starts |= {server.pid for server in servers}
    return {
        "first deployed, s": first_s,
        "last deployed, s": last_s,
        "each rated and read, s": time.perf_counter() - began,
        "users until each was rated": users,
        "model servers started": len(starts),
        "server's memory, first one, MiB": alone_mib,
        "server's memory, all rated, MiB": _pss_mib(servers),
    }


def _request(repo: str, count: int) -> SweepRequest:
    return SweepRequest(
        variants=tuple(
            SubmissionRequest(
                repo=repo,
                name=f"variant {number}",
                params=PARAMS.model_copy(update={"temperature": round(number / count, 3)}),
            )
            for number in range(count)
        )
    )


def _rate_each(app: Client, client: Client, sweep: Sweep) -> int:
    """Let users come, talk and rate until each variant's developer can read a rating; return how many came."""
    waiting = {one.id for one in sweep.submissions}
    bot, users = next(iter(BOTS.values())), 0
    while waiting:
        users += 1
        assert users <= USERS_PER_VARIANT * len(sweep.submissions), f"nobody met {waiting}"
        opened = app.open_conversation(f"user {users}", bot, consent=True)
        app.send(opened.conversation_id, "Hello!")
        app.rate(opened.conversation_id, True, "Good.")
        waiting.discard(opened.submission_id)
    unread = [one.id for one in sweep.submissions if not client.feedback(one.id)]
    assert not unread, f"no feedback of {unread}"
    return users


def _pss_mib(servers: list[psutil.Process]) -> float:
    every: list[Any] = [one for server in servers for one in (server, *server.children(True))]
    return float(sum(one.memory_full_info().pss for one in set(every))) / MIB


if __name__ == "__main__":
    main()
