"""One of several workers leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from guanaco.errors import ClusterUnreachable
from guanaco_server.clusters.kubernetes.api import lease
from guanaco_server.clusters.kubernetes.api.client import POD, THREADS
from guanaco_server.clusters.kubernetes.api.lease import LeaseLeadership
from tests.fixtures.kubernetes import FakeWorld, fake_world, until

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass on the clock by which leaders lead and leases expire."""
    passed_s = 0.0

    def let_pass(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(lease, "time", clock)
    return let_pass


def leadership(world: FakeWorld, holder: str) -> LeaseLeadership:
    api = world.api(patience_s=0.1, timeout_s=30)
    return LeaseLeadership(api, holder, duration_s=60, act_s=30, renew_s=0.05)


async def test_of_many_one_leads_and_another_follows_when_it_stops(world: FakeWorld) -> None:
    workers = [leadership(world, f"worker-{number}") for number in range(4)]
    await asyncio.gather(*(worker.start() for worker in workers))
    begun = len(world.server.requests)

    async def has_renewed_often() -> bool:
        assert sum(worker.is_leading() for worker in workers) == 1
        asked = world.server.requests[begun:]
        return sum(one.startswith("PUT") for one in asked) >= 5

    await until(has_renewed_often)
    leader = next(worker for worker in workers if worker.is_leading())
    await leader.stop()
    assert not leader.is_leading()
    others = [worker for worker in workers if worker is not leader]

    async def another_leads() -> bool:
        return sum(worker.is_leading() for worker in others) == 1

    await until(another_leads)
    for worker in others:
        await worker.stop()


async def test_a_leader_that_cannot_renew_stops_acting_before_another_begins(
    world: FakeWorld, let_pass: Callable[[float], None]
) -> None:
    one, other = (leadership(world, name) for name in ("one", "other"))
    assert await one.seek()
    assert not await other.seek()
    world.server.faults.answer(503)
    with pytest.raises(ClusterUnreachable):
        await one.seek()
    assert one.is_leading()
    let_pass(31)
    assert not one.is_leading()
    world.server.faults.end()
    assert not await other.seek()
    let_pass(31)
    assert await other.seek()
    assert not await one.seek()
    held = world.server.store.get(("leases", "models", "guanaco-reconciler"))
    assert held["spec"]["holderIdentity"] == "other"
    assert held["spec"]["leaseTransitions"] == 1


async def test_lease_waits_behind_no_hung_request(world: FakeWorld) -> None:
    api = world.api(patience_s=0.1, timeout_s=30)
    leading = LeaseLeadership(api.with_own_threads(), "one", duration_s=60, act_s=30)
    world.server.faults.be_silent()
    begun = len(world.server.requests)
    hung = [asyncio.create_task(api.get(POD, f"pod-{number}")) for number in range(2 * THREADS)]

    async def all_threads_wait() -> bool:
        return len(world.server.requests) - begun == THREADS

    await until(all_threads_wait)
    world.server.faults.answer_new_requests()
    assert await leading.seek()
    assert not any(task.done() for task in hung)
    world.server.faults.end()
    await asyncio.gather(*hung)


async def test_a_leader_that_is_restarted_finds_its_own_lease(world: FakeWorld) -> None:
    assert await leadership(world, "guanaco-worker-0").seek()
    assert not await leadership(world, "guanaco-worker-1").seek()
    assert await leadership(world, "guanaco-worker-0").seek()


async def test_observer_of_an_expired_lease_takes_it_at_once(
    world: FakeWorld, let_pass: Callable[[float], None]
) -> None:
    assert await leadership(world, "one").seek()
    other = leadership(world, "other")
    await other.watch()

    async def has_watched() -> bool:
        return bool(other._seen[0])

    await until(has_watched)
    let_pass(61)
    assert await other.seek(), "at the first try"
    await other.close()
