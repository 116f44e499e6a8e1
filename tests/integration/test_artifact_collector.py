"""Tests what is kept and what goes, with the clock in hand."""

from __future__ import annotations

import asyncio

import pytest

from guanaco.accounts import Role
from guanaco.submissions import Status
from guanaco_server.artifacts import queries
from guanaco_server.artifacts.collector import LEASE_S, RETRY_S
from guanaco_server.database.database import Database
from tests.fixtures.artifact_yard import DAY_S, GRACE_S, Yard
from tests.fixtures.clocks import after
from tests.fixtures.store_jobs import TENSORS, job
from tests.fixtures.world import eventually

USED = "a" * 64  # what World's submissions need
LOOSE = "b" * 64


@pytest.fixture
def yard(database: Database) -> Yard:
    return Yard(database)


async def submitted(yard: Yard, status: Status = Status.DEPLOYED) -> str:
    developer = await yard.world.account(Role.DEVELOPER)
    return await yard.world.publish(developer, status=status)


@pytest.mark.parametrize(
    "status", [Status.DEPLOYED, Status.INACTIVE, Status.SERIALIZING, Status.QUEUED]
)
async def test_what_a_submission_needs_is_never_deleted(yard: Yard, status: Status) -> None:
    await submitted(yard, status)
    await yard.sweep_daily(30)
    assert await yard.store.list_keys() == [USED]


async def test_unused_artifact_is_kept_for_the_grace_period_only(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.sweep_daily(8)
    assert (await yard.rows())[LOOSE].size_bytes == len(TENSORS) + len(b"{}") + 23
    assert await yard.store.list_keys() == [LOOSE]
    await yard.sweep_daily(1)
    assert await yard.store.list_keys() == []
    assert await yard.rows() == {}


async def test_a_torn_down_submission_needs_nothing(yard: Yard) -> None:
    submission_id = await submitted(yard)
    await yard.sweep_daily(1)
    await yard.move(submission_id, Status.TORN_DOWN)
    await yard.sweep_daily(7)
    assert await yard.store.list_keys() == [USED]
    await yard.sweep_daily(1)
    assert await yard.store.list_keys() == []


async def test_a_failed_submission_needs_its_artifact_for_a_while(yard: Yard) -> None:
    submission_id = await submitted(yard)
    await yard.move(submission_id, Status.FAILED)
    await yard.sweep_daily(14)
    assert await yard.store.list_keys() == [USED]
    await yard.sweep_daily(1)
    assert await yard.store.list_keys() == []


async def test_one_of_two_submissions_is_enough_to_keep_it(yard: Yard) -> None:
    developer = await yard.world.account(Role.DEVELOPER)
    await yard.world.publish(developer, "acme-tiny_v1")
    await yard.world.publish(developer, "acme-tiny_v2")
    await yard.move("acme-tiny_v1", Status.TORN_DOWN)
    await yard.sweep_daily(30)
    assert await yard.store.list_keys() == [USED]


async def test_platform_after_long_downtime_deletes_nothing_needed(
    yard: Yard,
) -> None:
    await submitted(yard)
    await yard.collector.sweep()
    yard.clock.advance(10 * GRACE_S)
    await yard.collector.keep(LOOSE)
    assert await yard.store.list_keys() == [USED]
    await yard.collector.sweep()
    assert await yard.store.list_keys() == [USED]


@pytest.mark.both_databases
async def test_a_touched_artifact_is_kept_for_the_grace(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.sweep_daily(7)
    yard.clock.advance(DAY_S)
    assert await yard.touch(LOOSE)
    await yard.sweep_daily(7)
    assert await yard.store.list_keys() == [LOOSE]
    await yard.sweep_daily(1)
    assert await yard.store.list_keys() == []


async def test_an_artifact_can_be_touched_before_it_is_made(yard: Yard) -> None:
    assert await yard.touch(LOOSE)
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    assert (await yard.rows())[LOOSE].size_bytes > 0


@pytest.mark.both_databases
@pytest.mark.slow
async def test_user_of_a_leaving_artifact_waits_until_it_is_gone(
    yard: Yard,
) -> None:
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    yard.clock.advance(GRACE_S + 1)
    yard.store.may_delete.clear()
    sweep = asyncio.create_task(yard.collector.sweep())
    await eventually(lambda: _is(bool(yard.store.deleted)))
    assert not await yard.touch(LOOSE)
    has_taken_over, take_over = asyncio.Event(), yard.collector._take_over

    async def told(key: str) -> None:
        await take_over(key)
        has_taken_over.set()

    yard.collector._take_over = told  # type: ignore[method-assign]
    keep = asyncio.create_task(yard.collector.keep(LOOSE))
    await has_taken_over.wait()  # it was told that the artifact leaves, and waits
    assert not keep.done()
    yard.store.may_delete.set()
    await sweep
    await after(RETRY_S, keep)
    assert await yard.store.find(LOOSE) is None
    assert (await yard.rows())[LOOSE].doomed_at is None
    await yard.store_loose(LOOSE)
    await yard.sweep_daily(7)
    assert await yard.store.list_keys() == [LOOSE]


@pytest.mark.both_databases
async def test_artifact_found_after_a_touch_outlives_concurrent_sweeps(yard: Yard) -> None:
    keys = [f"{number:064x}" for number in range(24)]
    await yard.store_loose(*keys)
    await yard.collector.sweep()
    yard.clock.advance(GRACE_S + 1)

    async def use(key: str) -> str | None:
        """Use it as whoever needs an artifact, and return the key if it may be used."""
        return key if await yard.touch(key) and await yard.store.find(key) else None

    sweeps = [asyncio.create_task(yard.another().sweep()) for _ in range(2)]
    used = {key for key in await asyncio.gather(*(use(key) for key in keys[::2])) if key}
    await asyncio.gather(*sweeps)
    assert set(await yard.store.list_keys()) == used
    assert len(yard.store.deleted) == len(set(yard.store.deleted)), "deleted by two"


@pytest.mark.both_databases
async def test_touch_between_look_and_verdict_saves_the_artifact(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    yard.clock.advance(GRACE_S + 1)
    async with yard.world.database.read() as session:
        assert await queries.expired(session, yard.clock.now()) == [LOOSE]
    assert await yard.touch(LOOSE)
    async with yard.world.database.write() as session:
        assert not await queries.claim_deletion(session, LOOSE, yard.clock.now(), yard.clock.now())
    assert (await yard.rows())[LOOSE].doomed_at is None


@pytest.mark.both_databases
async def test_of_two_that_doom_an_artifact_one_may_delete_it(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    yard.clock.advance(GRACE_S + 1)
    yard.store.may_delete.clear()
    sweeps = [asyncio.create_task(yard.another().sweep()) for _ in range(3)]
    await eventually(lambda: _is(sum(sweep.done() for sweep in sweeps) == 2))
    yard.store.may_delete.set()
    await asyncio.gather(*sweeps)
    assert yard.store.deleted == [LOOSE]


async def test_next_sweep_finishes_the_deletion_of_a_dead_platform(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    yard.clock.advance(1)
    await yard.claim_deletion(LOOSE)
    await yard.collector.sweep()
    assert await yard.store.list_keys() == [LOOSE], "the other may still be at it"
    yard.clock.advance(LEASE_S + 1)
    await yard.collector.sweep()
    assert await yard.store.list_keys() == []
    assert await yard.rows() == {}


@pytest.mark.slow
async def test_or_by_whoever_needs_that_artifact(yard: Yard) -> None:
    await yard.store_loose(LOOSE)
    await yard.collector.sweep()
    yard.clock.advance(1)
    await yard.claim_deletion(LOOSE)
    yard.clock.advance(LEASE_S + 1)
    await yard.collector.keep(LOOSE)
    assert await yard.store.find(LOOSE) is None
    assert await yard.touch(LOOSE)


async def test_what_a_dead_job_left_is_dropped(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    await yard.store.begin(job(LOOSE), 1)
    await yard.collector.sweep()
    with caplog.at_level("INFO"):
        await yard.another(staging_s=0).sweep()
    assert f"unfinished job for artifact {LOOSE}" in caplog.text
    assert await yard.store.discard_stale(0) == []


async def test_a_store_that_does_not_answer_is_asked_again(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    await yard.store_loose(LOOSE)
    yard.store.failures = 2
    collector = yard.another(sweep_s=0.01)
    await collector.start()

    async def has_swept() -> bool:
        return LOOSE in await yard.rows()

    await eventually(has_swept)
    await collector.stop()
    assert "collecting artifacts failed" in caplog.text


async def _is(holds: bool) -> bool:
    return holds
