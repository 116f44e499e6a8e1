"""One of several workers leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.errors import ClusterUnreachable
from guanaco_server.clusters.kubernetes.lease import LeaseLeadership
from tests.fixtures.kubernetes import FakeWorld, fake_world, until

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


def leadership(
    world: FakeWorld, holder: str, duration_s: float = 60, act_s: float = 30
) -> LeaseLeadership:
    api = world.api(patience_s=0.1, timeout_s=30)
    return LeaseLeadership(api, holder, duration_s=duration_s, act_s=act_s, renew_s=0.05)


async def test_of_many_one_leads_and_another_follows_when_it_stops(world: FakeWorld) -> None:
    workers = [leadership(world, f"worker-{number}") for number in range(4)]
    await asyncio.gather(*(worker.start() for worker in workers))
    for _ in range(10):
        assert sum(worker.is_leading() for worker in workers) == 1
        await asyncio.sleep(0.05)
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
    world: FakeWorld,
) -> None:
    one, other = (leadership(world, name, duration_s=8, act_s=1) for name in ("one", "other"))
    assert await one.seek()
    assert not await other.seek()
    world.server.faults.answer(503)
    with pytest.raises(ClusterUnreachable):
        await one.seek()

    async def has_stopped() -> bool:
        return not one.is_leading()

    await until(has_stopped)
    world.server.faults.end()
    assert not await other.seek()
    await until(other.seek)
    assert not await one.seek()
    lease = world.server.store.get(("leases", "models", "guanaco-reconciler"))
    assert lease["spec"]["holderIdentity"] == "other"
    assert lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_is_restarted_finds_its_own_lease(world: FakeWorld) -> None:
    assert await leadership(world, "guanaco-worker-0").seek()
    assert not await leadership(world, "guanaco-worker-1").seek()
    assert await leadership(world, "guanaco-worker-0").seek()


async def test_observer_of_an_expired_lease_takes_it_at_once(world: FakeWorld) -> None:
    assert await leadership(world, "one").seek()
    other = leadership(world, "other", duration_s=1, act_s=0.5)
    await other.watch()

    async def has_watched() -> bool:
        return bool(other._seen[0]) and time.monotonic() - other._seen[1] > 1

    await until(has_watched)
    assert await other.seek(), "at the first try"
    await other.close()
