"""A redeploy brings its version up beside the one that serves; whatever ends it, something serves all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from guanaco.errors import IllegalTransition, RedeployInProgress
from guanaco.submissions import RolloutPhase, Stage, Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import ServerLoad
from guanaco_server.deployments.versions import beside
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.runner import Step
from tests.fixtures.pipeline import ID, RUN, tiny_files
from tests.fixtures.rolling import KEY, NEW, NEXT, OLD, RollingWorld


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> RollingWorld:
    """A submission that is published and served."""
    world = RollingWorld(database)
    await world.serialized(tiny_files(tmp_path / "repo"))
    assert await world.bring_up(RUN) is Step.DONE
    await world.routing.refresh()
    return world


async def test_new_conversations_move_first_then_the_open_ones(world: RollingWorld) -> None:
    world.clock.advance(60)
    await world.redeploy()
    old, new = (world.endpoint(OLD),), (world.endpoint(NEW),)
    assert (await world.submission()).status is Status.DEPLOYED
    assert await world.endpoints(began_s=10) == old
    assert await world.endpoints() == new

    await world.take_over()
    assert await world.endpoints(began_s=30) == new
    assert await world.phase() is RolloutPhase.DRAINING
    assert {OLD, NEW} <= set(await world.cluster.list_deployments())

    await world.drain()
    assert await world.phase() is RolloutPhase.DONE
    assert await world.cluster.list_deployments() == [NEW]
    assert await world.endpoints(began_s=30) == new


async def test_the_old_version_stays_until_its_replies_are_finished(world: RollingWorld) -> None:
    await world.redeploy()
    await world.take_over()
    world.model_server.loads[world.endpoint(OLD)] = ServerLoad(running=1, waiting=0)
    await world.drain()
    assert OLD in await world.cluster.list_deployments()
    world.model_server.loads.clear()
    await world.drain()
    assert await world.cluster.list_deployments() == [NEW]


async def test_old_version_that_never_ends_is_stopped_after_a_while(
    world: RollingWorld,
) -> None:
    await world.redeploy()
    await world.take_over()
    world.model_server.loads[world.endpoint(OLD)] = ServerLoad(running=1, waiting=0)
    world.clock.advance(world.settings.reply_timeout_s)
    await world.drain()
    assert await world.cluster.list_deployments() == [NEW]


async def test_a_version_that_cannot_start_leaves_the_old_one_serving(world: RollingWorld) -> None:
    old = await world.endpoints()
    world.cluster.dies_with[ID] = "RuntimeError: no such kernel"
    await world.submissions.redeploy(world.developer, ID)
    assert await world.bring_up(NEXT) is Step.FAILED
    await world.reconciler.reconcile()

    submission = await world.submission()
    assert (submission.status, submission.failure) == (Status.DEPLOYED, None)
    assert submission.rollout is not None
    assert submission.rollout.failure is not None
    assert "no such kernel" in submission.rollout.failure.detail
    assert await world.endpoints() == old
    assert await world.cluster.list_deployments() == [OLD]
    said = [line for line in await world.log() if "serves on" in line]
    assert said
    assert said[0].startswith("error: The redeploy failed")


async def test_a_version_that_keeps_dying_while_it_shifts_gives_way(world: RollingWorld) -> None:
    old = await world.endpoints()
    await world.redeploy()
    world.cluster.dies_with[KEY] = world.cluster.dies_with[ID] = "CUDA error"
    for _ in range(world.settings.restart_limit + 2):
        world.cluster.die(NEW)
        world.clock.advance(60)
        await world.reconciler.reconcile()
        if await world.phase() is RolloutPhase.FAILED:
            break
    await world.routing.refresh()
    assert await world.phase() is RolloutPhase.FAILED
    assert await world.endpoints() == old


@pytest.mark.parametrize("is_shifting", [False, True])
async def test_a_cancel_leaves_the_old_version_serving(
    world: RollingWorld, is_shifting: bool
) -> None:
    old = await world.endpoints()
    if is_shifting:
        await world.redeploy()
    else:
        await world.submissions.redeploy(world.developer, ID)
    cancelled = await world.submissions.cancel(world.developer, ID)
    await world.routing.refresh()
    assert cancelled.status is Status.DEPLOYED
    assert await world.phase() is RolloutPhase.CANCELLED
    assert await world.endpoints() == old
    assert await world.runner.run_next(NEXT) is (Step.DONE if is_shifting else Step.CANCELLED)
    if is_shifting:
        await world.drain()
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == [OLD]


async def test_a_version_that_gives_way_finishes_its_replies(world: RollingWorld) -> None:
    old = await world.endpoints()
    await world.redeploy()
    world.model_server.loads[world.endpoint(NEW)] = ServerLoad(running=1, waiting=0)
    await world.submissions.cancel(world.developer, ID)
    await world.routing.refresh()
    assert await world.endpoints() == old
    await world.journal.withdraw_ended()
    await world.drain()
    assert set(await world.cluster.list_deployments()) == {OLD, NEW}
    world.model_server.loads.clear()
    await world.drain()
    assert await world.cluster.list_deployments() == [OLD]
    assert [row.submission_id for row in await world.deployments.list_wishes()] == [ID]


@pytest.mark.both_databases
async def test_a_teardown_stops_a_version_that_gives_way_at_once(world: RollingWorld) -> None:
    await world.redeploy()
    world.model_server.loads[world.endpoint(NEW)] = ServerLoad(running=1, waiting=0)
    await world.submissions.cancel(world.developer, ID)
    await world.submissions.teardown(world.developer, ID)
    await world.reconciler.reconcile()
    assert await world.deployments.list_wishes() == []
    assert await world.cluster.list_deployments() == []


@pytest.mark.both_databases
async def test_a_cancel_comes_too_late_when_the_old_version_drains(world: RollingWorld) -> None:
    await world.redeploy()
    await world.take_over()
    with pytest.raises(IllegalTransition):
        await world.submissions.cancel(world.developer, ID)


@pytest.mark.parametrize("how_far", [1, 2, 3])
async def test_a_teardown_in_the_middle_stops_both_versions(
    world: RollingWorld, how_far: int
) -> None:
    await world.submissions.redeploy(world.developer, ID)
    if how_far > 1:
        await world.bring_up(NEXT)
    if how_far > 2:
        await world.take_over()
    await world.submissions.teardown(world.developer, ID)
    await world.runner.run_next(NEXT)
    await world.rollouts.step()
    await world.reconciler.reconcile()
    assert await world.deployments.list_wishes() == []
    assert await world.cluster.list_deployments() == []


@pytest.mark.both_databases
async def test_a_restart_in_each_phase_goes_on(world: RollingWorld) -> None:
    await world.submissions.redeploy(world.developer, ID)
    await world.journal.begin_stage(NEXT, Stage.RESOLVE)
    world.restart()
    (unfinished,) = await world.journal.list_unfinished()
    assert unfinished.run == NEXT
    assert await world.bring_up(NEXT) is Step.DONE
    world.restart()
    await world.reconciler.reconcile()
    await world.take_over()
    world.restart()
    await world.reconciler.reconcile()
    await world.drain()
    assert await world.phase() is RolloutPhase.DONE
    assert await world.cluster.list_deployments() == [NEW]
    assert world.cluster.starts == [OLD, NEW]


async def test_one_redeploy_at_a_time(world: RollingWorld) -> None:
    await world.submissions.redeploy(world.developer, ID)
    with pytest.raises(RedeployInProgress):
        await world.submissions.redeploy(world.developer, ID)


@pytest.mark.both_databases
async def test_two_redeploys_at_once_begin_one(world: RollingWorld) -> None:
    begun = await asyncio.gather(
        *(world.submissions.redeploy(world.developer, ID) for _ in range(2)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in begun) == ["RedeployInProgress", "Submission"]


async def test_a_second_redeploy_replaces_the_first(world: RollingWorld) -> None:
    await world.redeploy()
    await world.take_over()
    await world.drain()
    await world.submissions.redeploy(world.developer, ID)
    assert await world.bring_up(PipelineRun(ID, 3)) is Step.DONE
    await world.take_over()
    await world.drain()
    assert await world.cluster.list_deployments() == [deployment_name(beside(ID, 3))]


@pytest.mark.both_databases
async def test_other_gateways_learn_whom_to_ask(world: RollingWorld) -> None:
    elsewhere = RollingWorld(world.database)
    elsewhere.deployments.note_reconciler(False)
    await world.redeploy()
    await elsewhere.routing.refresh()
    assert await elsewhere.endpoints() == (world.endpoint(NEW),)
    await world.take_over()
    await elsewhere.routing.refresh()
    assert await elsewhere.endpoints(began_s=999) == (world.endpoint(NEW),)
