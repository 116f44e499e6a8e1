"""A thousand faults while people chat, rate and submit; then what clients were told is compared with what is stored.

    make bench-faults ARGS='--seed=1 --faults=1000 --seconds=1200'

The platform runs as an API with two gateway processes and a worker, over PostgreSQL and an S3 server, with scripted model
servers. Eight users talk and rate, one developer submits and redeploys; each repeats a request, with its Idempotency-Key, until it is
acknowledged. From a seed, faults hit every component for a moment: about two a second, of which several overlap. Processes that
end are started again, as systemd or a cluster does. Then all faults are lifted, the clients get their last answers, and the
platform has time to finish what it has begun. An auditor reads the database, the bucket and the list of processes.

Prints the faults by component, what the auditor found, and one line of JSON. The status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from benchmarks.faults import stage as stages
from benchmarks.faults.auditor import KINDS, Finding, audit, orphaned_rows
from benchmarks.faults.clients import Campaign, Developer, HttpClient, User
from benchmarks.faults.injections import campaign
from benchmarks.faults.ledger import Ledger
from benchmarks.faults.orphans import orphaned_engines, orphaned_objects, orphaned_processes
from benchmarks.faults.stage import Stage

ROOT = Path(__file__).parents[2]
SETTLE_S = 180.0
Counts = Mapping[tuple[str, str], int]


@dataclass
class Result:
    seed: int
    seconds: float
    faults: Counts
    ledger: Ledger
    findings: Sequence[Finding]
    restarts: Mapping[str, int]


async def run(options: argparse.Namespace) -> Result:
    ledger = Ledger()
    async with stages.built(options.engine_python) as stage:
        try:
            return await _on(stage, ledger, options)
        finally:
            if options.keep is not None:
                _keep_logs(stage, options.keep)


async def _on(stage: Stage, ledger: Ledger, options: argparse.Namespace) -> Result:
    await asyncio.to_thread(stage.start)
    supervising = asyncio.create_task(stage.supervise())
    shared = Campaign(stage.base_url, ledger, asyncio.Event(), asyncio.Event())
    developer = Developer(HttpClient(shared, stage.developer_key), stage.repos[1:], options.seed)
    anchor = await developer.submit(stage.repos[0])
    found = await developer.settled(anchor)
    if found["status"] != "deployed":
        raise RuntimeError(f"the first submission was not deployed: {found}")
    app = HttpClient(shared, stage.app_key)
    clients = [asyncio.create_task(developer.work(anchor))]
    clients += [
        asyncio.create_task(User(app, n, options.seed).talk()) for n in range(options.users)
    ]
    began = time.monotonic()
    faults = await campaign(
        stage,
        options.seed,
        options.pace,
        lambda count: count >= options.faults or time.monotonic() - began > options.seconds,
    )
    seconds = time.monotonic() - began
    _talk(f"{sum(faults.values())} faults in {seconds:.0f} s; {ledger.counts()}")
    await stage.until_ready()
    await _last_answers(shared, clients)
    engine = create_engine(stage.postgres.url("test_1"), poolclass=NullPool)
    await _settled(stage, engine)
    findings = await asyncio.to_thread(_audited, engine, ledger)
    findings += await asyncio.to_thread(orphaned_engines, stage, engine)
    findings += await asyncio.to_thread(orphaned_objects, stage, engine)
    stage.is_stopping = True
    await supervising
    await asyncio.to_thread(stage.stop)
    findings += await asyncio.to_thread(orphaned_processes)
    restarts = {one.name: one.restarts for one in (stage.api, stage.worker)}
    return Result(options.seed, seconds, faults, ledger, findings, restarts)


async def _last_answers(shared: Campaign, clients: Sequence[asyncio.Task[None]]) -> None:
    """Let every client have the answer that it waits for."""
    shared.is_over.set()
    _, left = await asyncio.wait(clients, timeout=SETTLE_S)
    if left:
        _talk(f"{len(left)} clients have waited in vain")
        shared.ledger.refused.append(f"{len(left)} clients got no answer within {SETTLE_S:.0f} s")
    shared.has_ended.set()
    await asyncio.gather(*clients)


def _audited(engine: Engine, ledger: Ledger) -> list[Finding]:
    with engine.connect() as tables:
        return audit(tables, ledger)


def _unsettled(engine: Engine) -> list[str]:
    with engine.connect() as tables:
        return [finding.sentence for finding in orphaned_rows(tables)]


async def _settled(stage: Stage, engine: Engine) -> None:
    """Wait until nothing is under way any more; what still is after SETTLE_S is found by the auditor."""
    deadline = time.monotonic() + SETTLE_S
    left: list[str] = []
    while time.monotonic() < deadline:
        try:
            left = await asyncio.to_thread(_unsettled, engine)
        except DBAPIError as error:
            left = [str(error)]
        if not left and not await asyncio.to_thread(orphaned_engines, stage, engine):
            return
        await asyncio.sleep(1)
    _talk(f"not settled after {SETTLE_S:.0f} s: {left[:5]}")


def report(result: Result) -> dict[str, Any]:
    print("| component | fault | injected |\n| --- | --- | --- |")
    for (component, name), count in result.faults.items():
        print(f"| {component} | {name} | {count} |")
    print(f"| all | | {sum(result.faults.values())} |\n")
    found = Counter(finding.kind for finding in result.findings)
    print("| " + " | ".join(KINDS) + " |\n|" + " --- |" * len(KINDS))
    print("| " + " | ".join(str(found[kind]) for kind in KINDS) + " |\n")
    for finding in result.findings[:60]:
        print(f"{finding.kind}: {finding.sentence}")
    for title in ("forgotten", "refused"):
        for sentence in getattr(result.ledger, title)[:40]:
            print(f"{title}: {sentence}")
    by_component: Counter[str] = Counter()
    for (component, _), count in result.faults.items():
        by_component[component] += count
    return {
        "seed": result.seed,
        "seconds": round(result.seconds),
        "faults": sum(result.faults.values()),
        "by_component": dict(by_component),
        "by_fault": {": ".join(key): count for key, count in result.faults.items()},
        "told": result.ledger.counts(),
        "repeated": result.ledger.repeated,
        "restarts": dict(result.restarts),
        "found": {kind: found[kind] for kind in KINDS},
        "forgotten": len(result.ledger.forgotten),
        "refused": len(result.ledger.refused),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=1_080, help="at most, for the faults")
    parser.add_argument("--pace", type=float, default=2.0, help="faults a second")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a folder for the platform's logs")
    python = os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python")
    parser.add_argument("--engine-python", type=Path, default=Path(python))
    options = parser.parse_args()
    stages.adopt_orphans()
    result = asyncio.run(run(options))
    told = report(result)
    print(json.dumps(told))
    sys.exit(1 if result.findings or told["forgotten"] or told["refused"] else 0)


def _keep_logs(stage: Stage, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in (*stage.folder.glob("*.log"), stage.postgres.folder / "log"):
        shutil.copy(log, folder / log.name)


def _talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
