"""Workers that share a database: who lives, who takes over, who may do what only one may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import ANY

import pytest
from sqlalchemy.exc import OperationalError

from guanaco.accounts import Role
from guanaco.errors import WorkerGivenUp
from guanaco.submissions import SubmissionRequest
from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.settings import Settings
from guanaco_server.workers.room import build_workers
from guanaco_server.workers.service import CLAIM_SILENCES, FORGET_S
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import signed_in

SILENCE_S = 30.0
CLAIM_S = CLAIM_SILENCES * SILENCE_S


class Duty:
    def __init__(self) -> None:
        self.runs = 0

    async def start(self) -> None:
        self.runs += 1

    async def stop(self) -> None:
        self.runs -= 1


class Worker:
    def __init__(self, database: Database, clock: FixedClock, name: str) -> None:
        settings = Settings(executor_id=name, worker_silence_s=SILENCE_S)
        room = build_workers(database, clock, settings=settings)
        self.service = room.workers
        self.taken_over: list[str] = []
        self.duty = Duty()
        self.notes: list[bool] = []
        self.heartbeat = room.heartbeat(self._take_over, (self.duty,), self.notes.append)

    async def start(self) -> None:
        await self.heartbeat.enter()
        await self.heartbeat.start()

    async def _take_over(self, executor_id: str) -> int:
        self.taken_over.append(executor_id)
        return 1


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
async def workers(database: Database, clock: FixedClock) -> Sequence[Worker]:
    return [Worker(database, clock, name) for name in ("a", "b", "c")]


@pytest.mark.both_databases
async def test_one_survivor_takes_over_from_a_silent_worker(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    for worker in workers:
        await worker.service.enter()
    for _ in range(7):
        clock.advance(SILENCE_S / 6)
        await asyncio.gather(*(worker.heartbeat.pulse() for worker in workers[1:]))
    taken = [name for worker in workers for name in worker.taken_over]
    assert taken == ["a"]
    assert await workers[1].service.count_living() == 2


async def test_a_worker_that_beats_is_left_alone(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    for worker in workers:
        await worker.service.enter()
    for _ in range(20):
        clock.advance(SILENCE_S / 2)
        for worker in workers:
            await worker.heartbeat.pulse()
    assert [worker.taken_over for worker in workers] == [[], [], []]


@pytest.mark.both_databases
async def test_worker_given_up_by_others_ends_at_its_next_beat(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    slow, other, _ = workers
    await slow.service.enter()
    await other.service.enter()
    clock.advance(SILENCE_S + 1)
    await other.service.beat()
    await other.heartbeat.pulse()
    with pytest.raises(WorkerGivenUp):
        await slow.heartbeat.pulse()


async def test_worker_survives_a_change_of_its_clock(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    """Or when it is held up between its beat and its look at the others."""
    alone = workers[0]
    await alone.service.enter()
    await alone.service.beat()
    clock.advance(10 * SILENCE_S)
    assert await alone.service.list_silent() == []
    await alone.heartbeat.pulse()
    assert alone.taken_over == []


@pytest.mark.both_databases
async def test_returning_worker_waits_until_its_work_was_taken_over(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    dead, heir, _ = workers
    await dead.service.enter()
    await heir.service.enter()
    clock.advance(SILENCE_S + 1)
    assert await heir.service.claim("a")
    assert not await dead.service.enter()
    await heir.service.end_claim("a")
    assert await dead.service.enter()


async def test_absent_worker_is_claimed_again_and_finally_forgotten(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    dead, heir, _ = workers
    await dead.service.enter()
    await heir.service.enter()
    for _ in range(int(FORGET_S / SILENCE_S) + 10):
        clock.advance(SILENCE_S)
        await heir.heartbeat.pulse()
    assert 10 < len(heir.taken_over) <= FORGET_S / CLAIM_S + 1
    clock.advance(CLAIM_S + 1)
    assert await heir.service.list_silent() == []


async def test_a_survivor_that_dies_while_taking_over_is_succeeded(
    workers: Sequence[Worker], clock: FixedClock
) -> None:
    dead, heir, second = workers
    await dead.service.enter()
    clock.advance(SILENCE_S + 1)
    assert await heir.service.claim("a")
    assert not await second.service.claim("a")
    clock.advance(CLAIM_S + 1)
    assert await second.service.claim("a")


@pytest.mark.both_databases
async def test_one_worker_is_on_duty_and_another_succeeds_it(
    workers: Sequence[Worker],
) -> None:
    first, second, _ = workers
    await first.start()
    await second.start()
    assert (first.duty.runs, second.duty.runs) == (1, 0)
    await second.heartbeat.pulse()
    assert second.duty.runs == 0

    await first.heartbeat.stop()
    await second.heartbeat.pulse()
    assert (first.duty.runs, second.duty.runs) == (0, 1)
    assert (first.notes, second.notes) == ([True, False], [True])
    await second.heartbeat.stop()


async def test_a_dead_workers_duty_passes_on(workers: Sequence[Worker], clock: FixedClock) -> None:
    first, second, _ = workers
    await first.service.enter()
    await first.service.take_lease("reconcile")
    await second.start()
    clock.advance(SILENCE_S + 1)
    await second.heartbeat.pulse()
    assert second.duty.runs == 1
    await second.heartbeat.stop()


@pytest.mark.both_databases
@pytest.mark.slow
async def test_a_lease_is_held_by_one_at_a_time(workers: Sequence[Worker]) -> None:
    inside: list[str] = []
    most = 0

    async def work(worker: Worker) -> None:
        nonlocal most
        async with worker.service.holding("serialize-x"):
            inside.append(worker.service.executor_id)
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.pop()

    await asyncio.gather(*(work(worker) for worker in workers))
    assert most == 1


async def test_finished_work_stays_finished_when_its_lease_cannot_be_released(
    workers: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_name: str) -> None:
        raise OperationalError("DELETE", {}, OSError("gone"))

    service = workers[0].service
    monkeypatch.setattr(service, "release_lease", away)
    async with service.holding("serialize-x"):
        pass


async def test_a_worker_stops_although_its_lease_cannot_be_released(
    workers: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_name: str) -> None:
        raise OperationalError("DELETE", {}, OSError("gone"))

    worker = workers[0]
    await worker.start()
    monkeypatch.setattr(worker.service, "release_lease", away)
    await worker.heartbeat.stop()
    assert worker.notes == [True, False]


class ApiOnly(WebWorld):
    changes = {"role": "api", "worker_silence_s": SILENCE_S}


async def alerts_shown(world: WebWorld) -> tuple[list[str], str]:
    """The names of the alerts that fire, and the operator's three pages."""
    root = await signed_in(world, Role.ADMIN, "root")
    paths = ("/admin", "/admin/deployments", "/admin/reliability")
    pages = [(await root.get(path)).text for path in paths]
    found = await world.platform.rooms.alerts.service.read()
    return [str(one.name) for one in found.firing], "".join(pages)


async def test_the_api_says_since_when_no_worker_was_heard_of(database: Database) -> None:
    world = ApiOnly(database)
    worker = Worker(database, world.clock, "a")
    await worker.service.enter()
    heard = f"{world.clock.now():%Y-%m-%d %H:%M:%S} UTC"
    world.clock.advance(59)
    assert await alerts_shown(world) == ([], ANY)
    world.clock.advance(1)
    names, pages = await alerts_shown(world)
    assert names == ["no_worker"]
    assert pages.count(f"No worker has been heard of since {heard}.") == 4
    assert "model servers were ready then" in pages
    ada = await world.account(Role.DEVELOPER, "ada")
    await world.publish(ada, "org-model_v1")
    seen = await world.submissions.require_visible(ada, "org-model_v1")
    made = await world.submissions.submit(ada, SubmissionRequest(repo="acme/tiny"), None)
    for one in (seen, made):
        assert f"{one.no_worker_since:%Y-%m-%d %H:%M:%S} UTC" == heard

    world.restart()  # a new process of the API, beside a worker that may be starting
    assert await alerts_shown(world) == ([], ANY)
    world.clock.advance(60)
    assert (await alerts_shown(world))[0] == ["no_worker"]
    await worker.service.beat()
    names, pages = await alerts_shown(world)
    assert names == []
    assert "No worker" not in pages


async def test_alerts_that_nobody_writes_are_shown(database: Database) -> None:
    world = ApiOnly(database)
    for _ in range(20):
        world.metrics.tally.note_reply(False)
    await world.platform.rooms.alerts.recorder.write()
    world.clock.advance(60)
    names, pages = await alerts_shown(world)
    assert names == ["no_worker", "budget_burns_fast", "budget_burns_slowly"]
    assert "No worker has ever been heard of" in pages


async def test_a_platform_in_one_process_misses_no_worker(database: Database) -> None:
    world = WebWorld(database)
    await Worker(database, world.clock, "of an earlier time").service.enter()
    world.clock.advance(86_400)
    assert await alerts_shown(world) == ([], ANY)
