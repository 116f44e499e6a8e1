"""The faults: each hits one component for a moment, and is lifted again.

One component has one fault at a time; faults of different components overlap. What is there for moments only, such as
a serializer or a request to S3, is waited for. A fault that finds nothing to hit is not counted, and another is chosen. A
kind that lags behind the others is chosen more often, so that each comes 20 times in a thousand.
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

from benchmarks.faults.pods import NAME
from benchmarks.faults.proxy import NONE, Fault, FaultyProxy
from benchmarks.faults.stage import Stage, SupervisedProcess
from tests.fixtures.fake_kubernetes.kubelet import Kubelet
from tests.fixtures.fake_kubernetes.store import Refused

LIES = (
    *("private", "gated", "info-500", "info-html", "info-list", "info-empty", "info-no-sha", "info-sha-path"),
    *("info-files-up", "file-500", "file-empty", "file-size", "file-range", "file-other-bytes", "file-hang-up"),
)  # fmt: skip
KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
WAVE = 30
LEAST_SHARE = 0.025  # of each kind
LEAST_SHARE_PODS = 0.055  # of those that only a part of the campaign has
LAGS = 6  # times as often is a kind chosen that has less
HUNT_S = 15.0
LOOK_S = 0.05
Inject = Callable[[Stage, random.Random], Awaitable[bool]]


@dataclass(frozen=True)
class Injection:
    """``weight`` is how often it is chosen. ``inject`` ends when the fault is lifted; False if it hit nothing."""

    component: str
    name: str
    weight: float
    inject: Inject
    least: float = LEAST_SHARE


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


def hunted(
    find: Callable[[Stage], Sequence[psutil.Process]], within_s: float, hit: Inject
) -> Inject:
    """Wait for one of these processes, let it work for up to ``within_s``, and hit."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        until = asyncio.get_running_loop().time() + HUNT_S
        while not await asyncio.to_thread(find, stage):
            if stage.is_calm or asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(within_s * chance.random())
        return await hit(stage, chance)

    return inject


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


def proxied(
    which: Callable[[Stage], FaultyProxy | None], fault: Fault, most_s: float, hunt_s: float = 0
) -> Inject:
    """``hunt_s`` is how long it may wait for something to hit before its time begins."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        proxy = which(stage)
        if proxy is None:
            return False
        before, until = proxy.hit, asyncio.get_running_loop().time() + hunt_s
        proxy.fault = replace(fault, delay_s=fault.delay_s * chance.random())
        try:
            while proxy.hit == before and asyncio.get_running_loop().time() < until:
                if stage.is_calm:
                    return False
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(_short(chance, most_s))
        finally:
            proxy.fault = NONE
        return proxy.hit > before

    return inject


def cut(which: Callable[[Stage], FaultyProxy | None]) -> Inject:
    async def inject(stage: Stage, _: random.Random) -> bool:
        proxy = which(stage)
        return proxy is not None and proxy.cut() > 0

    return inject


def befall_pod(stage: Stage, befall: Callable[[Kubelet, str], None], chance: random.Random) -> bool:
    """Something happens to a model server's or a job's pod."""
    if stage.pods is None:
        return False
    store = stage.pods.world.server.store
    found = sorted(
        pod["metadata"]["annotations"][NAME]
        for pod in store.all("pods")
        if pod.get("status", {}).get("phase") == "Running"
    )
    if not found:
        return False
    befall(stage.pods.kubelet, chance.choice(found))
    return True


def befalling(befall: Callable[[Kubelet, str], None]) -> Inject:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        return await asyncio.to_thread(befall_pod, stage, befall, chance)

    return inject


def answered(status: int, most_s: float) -> Inject:
    """The API server answers every request with this status."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        if stage.pods is None:
            return False
        faults = stage.pods.world.server.faults
        before = len(faults.refused)
        faults.answer(status)
        try:
            await asyncio.sleep(0.5 + _short(chance, most_s))
        finally:
            faults.end()
        return len(faults.refused) > before

    return inject


async def delete_deployment(stage: Stage, chance: random.Random) -> bool:
    """Somebody deletes a model server's Deployment by hand."""
    if stage.pods is None:
        return False
    store = stage.pods.world.server.store
    found = sorted(
        (one["metadata"]["namespace"], one["metadata"]["name"]) for one in store.all("deployments")
    )
    if not found:
        return False
    with contextlib.suppress(Refused):
        store.delete(("deployments", *chance.choice(found)))
    return True


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


def _pods_proxy(stage: Stage) -> FaultyProxy | None:
    return stage.pods.proxy if stage.pods is not None else None


INJECTIONS = (
    Injection("api", "kill -9", 2, kill_role(lambda stage: stage.api)),
    Injection("api", "SIGSTOP", 6, suspend_role(lambda stage: stage.api, 4)),
    Injection("gateway", "kill -9", 4, kill(Stage.gateways)),
    Injection("gateway", "SIGSTOP", 8, suspend(Stage.gateways, 25)),
    Injection("worker", "kill -9", 4, kill_role(lambda stage: stage.worker)),
    Injection("worker", "SIGSTOP", 8, suspend_role(lambda stage: stage.worker, 12)),
    Injection("engine", "kill -9", 10, kill(Stage.engines)),
    Injection("engine", "SIGSTOP", 10, suspend(Stage.engines, 8)),
    Injection("serializer", "kill -9", 10, hunted(Stage.serializers, 2, kill(Stage.serializers))),
    Injection("serializer", "SIGSTOP", 14, hunted(Stage.serializers, 2, suspend(Stage.serializers, 4))),
    Injection("PostgreSQL", "backend killed", 3, kill_backend),
    Injection("PostgreSQL", "server killed", 1, kill_postgres),
    Injection("PostgreSQL", "SIGSTOP", 3, suspend_postgres),
    Injection("PostgreSQL", "out of connections", 3, take_connections),
    Injection("PostgreSQL", "out of disk", 2, fill_disk),
    Injection("PostgreSQL", "slow", 8, proxied(lambda s: s.database_proxy, Fault(delay_s=0.3), 3)),
    Injection("PostgreSQL", "connections cut", 6, cut(lambda s: s.database_proxy)),
    Injection("PostgreSQL", "answers lost", 6, proxied(lambda s: s.database_proxy, Fault(cut_after=0), 0.3)),
    Injection("S3", "5xx", 6, proxied(lambda s: s.store_proxy, Fault(status=503), 1.5, HUNT_S)),
    Injection("S3", "slow", 6, proxied(lambda s: s.store_proxy, Fault(delay_s=0.5), 3, HUNT_S)),
    Injection("S3", "truncated", 6, proxied(lambda s: s.store_proxy, Fault(cut_after=300), 1, HUNT_S)),
    Injection("S3", "away", 3, proxied(lambda s: s.store_proxy, Fault(is_refusing=True), 1.5, HUNT_S)),
    Injection("Hub", "lies", 4, lie),
    Injection("clock", "step", 8, step_clock),
)  # fmt: skip
POD_INJECTIONS = (
    Injection("Kubernetes API", "away", 8, proxied(_pods_proxy, Fault(is_refusing=True), 5, 4), LEAST_SHARE_PODS),
    Injection("Kubernetes API", "slow", 6, proxied(_pods_proxy, Fault(delay_s=1.5), 4, 4), LEAST_SHARE_PODS),
    Injection("Kubernetes API", "503", 8, answered(503, 4), LEAST_SHARE_PODS),
    Injection("Kubernetes API", "429", 6, answered(429, 2), LEAST_SHARE_PODS),
    Injection("Kubernetes API", "connections cut", 8, cut(_pods_proxy), LEAST_SHARE_PODS),
    Injection("pod", "evicted", 6, befalling(Kubelet.evict), LEAST_SHARE_PODS),
    Injection("pod", "out of memory", 6, befalling(Kubelet.run_out_of_memory), LEAST_SHARE_PODS),
    Injection("pod", "Deployment deleted", 6, delete_deployment, LEAST_SHARE_PODS),
)  # fmt: skip


async def campaign(
    stage: Stage,
    seed: str,
    pace_a_second: float,
    is_enough: Callable[[int], bool],
    calm: Callable[[int], Awaitable[None]],
) -> dict[tuple[str, str], int]:
    """Inject faults until it is enough; return how many of each hit.

    After each WAVE of them nothing fails until ``calm`` returns, so that there is something new to lose.
    """
    chance = random.Random(f"{seed} faults")
    injections = INJECTIONS + (POD_INJECTIONS if stage.pods is not None else ())
    counted: dict[tuple[str, str], int] = {(one.component, one.name): 0 for one in injections}
    busy: dict[str, asyncio.Task[None]] = {}

    async def run(injection: Injection) -> None:
        if await injection.inject(stage, chance):
            counted[injection.component, injection.name] += 1

    def weight(one: Injection) -> float:
        count, all_counts = counted[one.component, one.name], sum(counted.values())
        return one.weight * (LAGS if count < one.least * all_counts else 1)

    wave = 0  # something is to be lost before the first fault
    while not is_enough(sum(counted.values())):
        if sum(counted.values()) >= wave:
            stage.is_calm = True
            await asyncio.gather(*busy.values())
            await calm(sum(counted.values()))
            stage.is_calm = False
            wave = sum(counted.values()) + WAVE
        await asyncio.sleep(chance.expovariate(pace_a_second))
        for component, task in list(busy.items()):
            if task.done():
                task.result()
                del busy[component]
        free = [one for one in injections if one.component not in busy]
        if free:
            chosen = chance.choices(free, [weight(one) for one in free])[0]
            busy[chosen.component] = asyncio.create_task(run(chosen))
    stage.is_calm = True
    await asyncio.gather(*busy.values())
    return counted
