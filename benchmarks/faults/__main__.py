"""A thousand faults while people chat, rate and submit; then what clients were told is compared with what is stored.

    make bench-faults ARGS='--seed=1 --faults=1000 --seconds=1200'

The platform runs as an API with two gateway processes and a worker, over PostgreSQL and an S3 server, with scripted model
servers: first on this machine, then, for PODS_SHARE of the faults, on a Kubernetes whose API server is the tests'. Eight users talk
and rate, three developers submit, and one of them redeploys; each repeats a request, with its Idempotency-Key, until it is
acknowledged. From a seed, faults hit every component for a moment: a few a second, of which several overlap. Processes that
end are started again, as systemd or a cluster does. Then all faults are lifted, the clients get their last answers, and the
platform has time to finish what it has begun. An auditor reads the database, the bucket and the list of processes.

Prints the faults by component, what the auditor found, and one line of JSON. The status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from benchmarks.faults.outcomes import outcomes
from benchmarks.faults.pods import orphaned_pods
from benchmarks.faults.stage import DEVELOPERS, Stage

ROOT = Path(__file__).parents[2]
SETTLE_S = 180.0
PODS_SHARE = 0.4
CALM_TURNS = 4
CALM_S = 20.0


@dataclass
class Result:
    """The findings of a campaign, over all its parts."""

    seed: int
    seconds: float = 0.0
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    findings: list[Finding] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add_told(self, ledger: Ledger) -> None:
        self.told.update(ledger.counts())
        self.repeated += ledger.repeated
        self.forgotten += ledger.forgotten
        self.refused += ledger.refused


@dataclass(frozen=True)
class Part:
    """A platform of its own, and its share of the campaign's faults."""

    has_pods: bool
    share: float


PARTS = {
    "local": (Part(False, 1.0),),
    "kubernetes": (Part(True, 1.0),),
    "both": (Part(False, 1 - PODS_SHARE), Part(True, PODS_SHARE)),
}


async def run(options: argparse.Namespace) -> Result:
    result = Result(options.seed)
    for part in PARTS[options.cluster]:
        async with stages.built(options.engine_python, has_pods=part.has_pods) as stage:
            try:
                await _on(stage, part, result, options)
            finally:
                if options.keep is not None:
                    _keep_logs(stage, options.keep / ("kubernetes" if part.has_pods else "local"))
    return result


async def _on(stage: Stage, part: Part, result: Result, options: argparse.Namespace) -> None:
    ledger = Ledger()
    await asyncio.to_thread(stage.start)
    supervising = asyncio.create_task(stage.supervise())
    shared = Campaign(stage.base_url, ledger, asyncio.Event(), asyncio.Event())
    developers = [
        Developer(HttpClient(shared, stage.developer_key), stage.repos[1 + n :: DEVELOPERS], f"{options.seed} {n}")
        for n in range(DEVELOPERS)
    ]  # fmt: skip
    anchor = await developers[0].submit(stage.repos[0])
    found = await developers[0].settled(anchor)
    if found["status"] != "deployed":
        raise RuntimeError(f"the first submission was not deployed: {found}")
    app = HttpClient(shared, stage.app_key)
    work = [one.work(anchor if one is developers[0] else None) for one in developers]
    clients = [asyncio.create_task(one) for one in work]
    clients += [
        asyncio.create_task(User(app, n, options.seed).talk()) for n in range(options.users)
    ]
    began = time.monotonic()
    until, wanted = began + options.seconds * part.share, options.faults * part.share
    faults = await campaign(
        stage,
        f"{options.seed} {part}",
        options.pace,
        lambda count: count >= wanted or time.monotonic() > until,
        lambda count: _calm(stage, ledger, count),
    )
    result.faults.update(faults)
    result.seconds += time.monotonic() - began
    _talk(f"{sum(faults.values())} faults in {time.monotonic() - began:.0f} s; {ledger.counts()}")
    await stage.until_ready()
    await _last_answers(shared, clients)
    engine = create_engine(stage.postgres.url("test_1"), poolclass=NullPool)
    await _settled(stage, engine)
    result.findings += await asyncio.to_thread(_found, stage, engine, ledger)
    result.outcomes.update(await asyncio.to_thread(outcomes, engine))
    stage.is_stopping = True
    await supervising
    await asyncio.to_thread(stage.stop)
    result.findings += await asyncio.to_thread(orphaned_processes)
    result.restarts.update({one.name: one.restarts for one in (stage.api, stage.worker)})
    result.add_told(ledger)


async def _calm(stage: Stage, ledger: Ledger, faults: int) -> None:
    """Wait until every role is ready and some turns were acknowledged; the campaign goes on without after a while."""
    _talk(f"{faults} faults; {ledger.counts()}")
    wanted = ledger.counts()["replies"] + CALM_TURNS
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CALM_S):
            await stage.until_ready()
            while ledger.counts()["replies"] < wanted:  # noqa: ASYNC110 - clients count
                await asyncio.sleep(0.1)


async def _last_answers(shared: Campaign, clients: Sequence[asyncio.Task[None]]) -> None:
    """Let every client have the answer that it waits for."""
    shared.is_over.set()
    _, left = await asyncio.wait(clients, timeout=SETTLE_S)
    if left:
        _talk(f"{len(left)} clients have waited in vain")
        shared.ledger.refused.append(f"{len(left)} clients got no answer within {SETTLE_S:.0f} s")
    shared.has_ended.set()
    await asyncio.gather(*clients)


def _found(stage: Stage, engine: Engine, ledger: Ledger) -> list[Finding]:
    with engine.connect() as tables:
        return [*audit(tables, ledger), *_orphans(stage, engine), *orphaned_objects(stage.store, engine)]  # fmt: skip


def _orphans(stage: Stage, engine: Engine) -> list[Finding]:
    """Find what runs and nobody requested."""
    found = orphaned_engines(stage.engines(), engine)
    if stage.pods is not None:
        found += orphaned_pods(dict(stage.pods.world.server.store.objects), engine)
    return found


def _unsettled(stage: Stage, engine: Engine) -> list[str]:
    with engine.connect() as tables:
        found = [*orphaned_rows(tables), *_orphans(stage, engine)]
    return [finding.sentence for finding in found]


async def _settled(stage: Stage, engine: Engine) -> None:
    """Wait until nothing is under way any more; what still is after SETTLE_S is found by the auditor."""
    deadline = time.monotonic() + SETTLE_S
    left: list[str] = []
    while time.monotonic() < deadline:
        try:
            left = await asyncio.to_thread(_unsettled, stage, engine)
        except DBAPIError as error:
            left = [str(error)]
        if not left:
            return
        await asyncio.sleep(1)
    _talk(f"not settled after {SETTLE_S:.0f} s: {left[:5]}")


def report(result: Result) -> dict[str, Any]:
    print("| component | fault | injected |\n| --- | --- | --- |")
    for (component, name), count in result.faults.items():
        print(f"| {component} | {name} | {count} |")
    print(f"| all | | {sum(result.faults.values())} |\n")
    print("| how runs ended | |\n| --- | --- |")
    for how, count in sorted(result.outcomes.items()):
        print(f"| {how} | {count} |")
    print()
    found = Counter(finding.kind for finding in result.findings)
    print("| " + " | ".join(KINDS) + " |\n|" + " --- |" * len(KINDS))
    print("| " + " | ".join(str(found[kind]) for kind in KINDS) + " |\n")
    for finding in result.findings[:60]:
        print(f"{finding.kind}: {finding.sentence}")
    for title in ("forgotten", "refused"):
        for sentence in getattr(result, title)[:40]:
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
        "told": dict(result.told),
        "repeated": result.repeated,
        "restarts": dict(result.restarts),
        "outcomes": dict(result.outcomes),
        "found": {kind: found[kind] for kind in KINDS},
        "forgotten": len(result.forgotten),
        "refused": len(result.refused),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=1_020, help="at most, for the faults")
    parser.add_argument("--cluster", choices=sorted(PARTS), default="both")
    parser.add_argument("--pace", type=float, default=4.0, help="faults a second")
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
