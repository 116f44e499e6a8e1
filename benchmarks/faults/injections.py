"""The faults: each hits one component for a moment, and is lifted again.

A fault that finds nothing to hit (no serializer runs just then) is not counted, and another is chosen. Of one component there is
one fault at a time; those of different components overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import psutil
import psycopg

from benchmarks.faults.proxy import NONE, Fault, FaultyProxy
from benchmarks.faults.stage import Stage, SupervisedProcess

LIES = (
    *("private", "gated", "info-500", "info-html", "info-list", "info-empty", "info-no-sha", "info-sha-path"),
    *("info-files-up", "file-500", "file-empty", "file-size", "file-range", "file-other-bytes", "file-hang-up"),
)  # fmt: skip
KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
Inject = Callable[[Stage, random.Random], Awaitable[bool]]


@dataclass(frozen=True)
class Injection:
    """``weight`` is how often it is chosen. ``inject`` ends when the fault is lifted; False if it hit nothing."""

    component: str
    name: str
    weight: float
    inject: Inject


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> bool:
    sent = False
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(number)
            sent = True
    return sent


def kill(find: Callable[[Stage], Sequence[psutil.Process]]) -> Inject:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        found = await asyncio.to_thread(find, stage)
        return bool(found) and _signal([chance.choice(found)], KILL)

    return inject


def suspend(find: Callable[[Stage], Sequence[psutil.Process]], most_s: float) -> Inject:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        found = await asyncio.to_thread(find, stage)
        if not found:
            return False
        victim = [chance.choice(found)]
        if not _signal(victim, STOP):
            return False
        try:
            await asyncio.sleep(_short(chance, most_s))
        finally:
            _signal(victim, CONTINUE)
        return True

    return inject


def _short(chance: random.Random, most_s: float) -> float:
    """Mostly short, now and then as long as it may be."""
    return min(most_s, chance.expovariate(4 / most_s) + 0.05)


def kill_role(which: Callable[[Stage], SupervisedProcess]) -> Inject:
    async def inject(stage: Stage, _: random.Random) -> bool:
        process = which(stage).process.process
        if await asyncio.to_thread(process.poll) is not None:
            return False
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(1)
        return True

    return inject


def suspend_role(which: Callable[[Stage], SupervisedProcess], most_s: float) -> Inject:
    def find(stage: Stage) -> Sequence[psutil.Process]:
        process = which(stage).process.process
        return [psutil.Process(process.pid)] if process.poll() is None else []

    return suspend(find, most_s)


def proxied(which: Callable[[Stage], FaultyProxy], fault: Fault, most_s: float) -> Inject:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        proxy = which(stage)
        before = proxy.hit
        proxy.fault = replace(fault, delay_s=fault.delay_s * chance.random())
        try:
            await asyncio.sleep(_short(chance, most_s))
        finally:
            proxy.fault = NONE
        return proxy.hit > before

    return inject


async def cut_database(stage: Stage, _: random.Random) -> bool:
    return stage.database_proxy.cut() > 0


async def kill_backend(stage: Stage, chance: random.Random) -> bool:
    """PostgreSQL takes down and restarts everything when one of its processes is killed."""
    main = psutil.Process(stage.postgres.process.pid)
    backends = [
        one
        for one in main.children()
        if " guanaco " in f" {_title(one)} " or "test_" in _title(one)
    ]
    return bool(backends) and _signal([chance.choice(backends)], KILL)


async def kill_postgres(stage: Stage, chance: random.Random) -> bool:
    await asyncio.to_thread(stage.postgres.kill)
    await asyncio.sleep(_short(chance, 3))
    await asyncio.to_thread(stage.postgres.restart)
    return True


async def suspend_postgres(stage: Stage, chance: random.Random) -> bool:
    """Every one of its processes."""
    main = psutil.Process(stage.postgres.process.pid)
    victims = [main, *main.children()]
    _signal(victims, STOP)
    try:
        await asyncio.sleep(_short(chance, 4))
    finally:
        _signal(victims, CONTINUE)
    return True


async def take_connections(stage: Stage, chance: random.Random) -> bool:
    """End the platform's connections, and take all that there are before it can open new ones."""
    taken: list[psycopg.Connection] = []
    until = asyncio.get_running_loop().time() + 0.5 + _short(chance, 3)
    try:
        await asyncio.to_thread(_take_all, stage, taken)
        stage.database_proxy.cut()
        while asyncio.get_running_loop().time() < until:
            await asyncio.to_thread(_take_all, stage, taken)
            await asyncio.sleep(0.05)
    finally:
        for connection in taken:
            connection.close()
    return bool(taken)


def _take_all(stage: Stage, taken: list[psycopg.Connection]) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        while len(taken) < 1_000:
            taken.append(
                psycopg.connect(host=str(stage.postgres.folder), user="postgres", dbname="postgres")
            )


async def fill_disk(stage: Stage, chance: random.Random) -> bool:
    if stage.ballast is None:
        return False
    with contextlib.suppress(OSError), stage.ballast.open("wb", buffering=0) as file:
        piece = bytes(1 << 20)
        while file.write(piece) == len(piece):
            pass
    try:
        await asyncio.sleep(_short(chance, 4))
    finally:
        stage.ballast.unlink()
        if stage.postgres.process.poll() is not None:  # it gives up where it cannot write its log
            await asyncio.to_thread(stage.postgres.restart)
    return True


async def lie(stage: Stage, chance: random.Random) -> bool:
    told = chance.choice(LIES)
    stage.hub.lies = dict.fromkeys(stage.repos, told)
    try:
        await asyncio.sleep(_short(chance, 4))
    finally:
        stage.hub.lies = {}
    return True


async def step_clock(stage: Stage, chance: random.Random) -> bool:
    """Forwards or back, by up to a minute and a half, and to the right time later."""
    stage.clock.step_to(chance.choice([-90, -30, -5, 5, 25, 90]) * chance.random())
    try:
        await asyncio.sleep(_short(chance, 6))
    finally:
        stage.clock.step_to(0)
    return True


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


INJECTIONS = (
    Injection("api", "kill -9", 2, kill_role(lambda stage: stage.api)),
    Injection("api", "SIGSTOP", 6, suspend_role(lambda stage: stage.api, 4)),
    Injection("gateway", "kill -9", 4, kill(Stage.gateways)),
    Injection("gateway", "SIGSTOP", 12, suspend(Stage.gateways, 25)),
    Injection("worker", "kill -9", 4, kill_role(lambda stage: stage.worker)),
    Injection("worker", "SIGSTOP", 8, suspend_role(lambda stage: stage.worker, 12)),
    Injection("engine", "kill -9", 10, kill(Stage.engines)),
    Injection("engine", "SIGSTOP", 10, suspend(Stage.engines, 8)),
    Injection("serializer", "kill -9", 10, kill(Stage.serializers)),
    Injection("serializer", "SIGSTOP", 8, suspend(Stage.serializers, 4)),
    Injection("PostgreSQL", "backend killed", 3, kill_backend),
    Injection("PostgreSQL", "server killed", 1, kill_postgres),
    Injection("PostgreSQL", "SIGSTOP", 3, suspend_postgres),
    Injection("PostgreSQL", "out of connections", 3, take_connections),
    Injection("PostgreSQL", "out of disk", 2, fill_disk),
    Injection("PostgreSQL", "slow", 8, proxied(lambda s: s.database_proxy, Fault(delay_s=0.3), 3)),
    Injection("PostgreSQL", "connections cut", 6, cut_database),
    Injection("PostgreSQL", "answers lost", 6, proxied(lambda s: s.database_proxy, Fault(cut_after=0), 0.3)),
    Injection("S3", "5xx", 8, proxied(lambda s: s.store_proxy, Fault(status=503), 3)),
    Injection("S3", "slow", 8, proxied(lambda s: s.store_proxy, Fault(delay_s=0.5), 4)),
    Injection("S3", "truncated", 8, proxied(lambda s: s.store_proxy, Fault(cut_after=300), 2)),
    Injection("S3", "away", 4, proxied(lambda s: s.store_proxy, Fault(is_refusing=True), 3)),
    Injection("Hub", "lies", 8, lie),
    Injection("clock", "step", 8, step_clock),
)  # fmt: skip


async def campaign(
    stage: Stage, seed: int, pace_a_second: float, is_enough: Callable[[int], bool]
) -> dict[tuple[str, str], int]:
    """Inject faults until it is enough; return how many of each hit."""
    chance = random.Random(f"{seed} faults")
    counted: dict[tuple[str, str], int] = {(one.component, one.name): 0 for one in INJECTIONS}
    busy: dict[str, asyncio.Task[None]] = {}

    async def run(injection: Injection) -> None:
        if await injection.inject(stage, chance):
            counted[injection.component, injection.name] += 1

    while not is_enough(sum(counted.values())):
        await asyncio.sleep(chance.expovariate(pace_a_second))
        for component, task in list(busy.items()):
            if task.done():
                task.result()
                del busy[component]
        free = [one for one in INJECTIONS if one.component not in busy]
        if free:
            chosen = chance.choices(free, [one.weight for one in free])[0]
            busy[chosen.component] = asyncio.create_task(run(chosen))
    await asyncio.gather(*busy.values())
    return counted
