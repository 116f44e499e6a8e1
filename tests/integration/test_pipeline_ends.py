"""Every end of a run is recorded: failed or cancelled with a sentence, and no model server stays behind."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from guanaco.errors import (
    ClusterUnreachable,
    DatabaseUnavailable,
    IllegalTransition,
    StoreUnreachable,
)
from guanaco.submissions import Outcome, Stage, Status
from guanaco_server.database.database import Database
from guanaco_server.submissions.pipeline import runner
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.runner import OUTAGE_DELAYS_S, Step
from guanaco_server.submissions.pipeline.stages import FUNCTIONS, Facts
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.pipeline import ID, RUN, PipelineWorld, tiny_files

OUTAGE = OperationalError("x", {}, Exception("the database is down"))
NO_CONNECTION = NoConnectionLeft("QueuePool limit of size 10 overflow 10 reached")


class PanicError(BaseException):
    """An error like pyo3's PanicException, which is no Exception."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DATABASE_RETRY_S", 0.0)
    monkeypatch.setattr(runner, "RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(runner, "OUTAGE_DELAYS_S", (0.0,) * len(runner.OUTAGE_DELAYS_S))


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> PipelineWorld:
    """A submission that is deployed, and about to be published."""
    world = PipelineWorld(database)
    await world.serialized(tiny_files(tmp_path / "repo"))
    for stage in (Stage.RESOLVE, Stage.CHECK, Stage.SERIALIZE):
        assert await world.journal.begin_stage(RUN, stage) is None
        await world.journal.end_stage(RUN, stage, {})
    assert await world.runner.run_next(RUN) is Step.NEXT
    assert await world.journal.begin_stage(RUN, Stage.STRESS) is None
    await world.journal.end_stage(RUN, Stage.STRESS, {})
    return world


@pytest.mark.both_databases
async def test_a_cancel_that_meets_publish_leaves_no_server_behind(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(*_: Any) -> Facts:
        await world.submissions.cancel(world.developer, ID)
        return {}

    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, publish)
    assert await world.runner.run_next(RUN) is Step.CANCELLED
    assert await status(world) is Status.CANCELLED
    await nothing_is_served(world)


@pytest.mark.both_databases
async def test_a_publish_that_comes_first_refuses_the_cancel(world: PipelineWorld) -> None:
    assert await world.runner.run_next(RUN) is Step.DONE
    with pytest.raises(IllegalTransition):
        await world.submissions.cancel(world.developer, ID)
    assert await world.cluster.list_deployments() != []


@pytest.mark.parametrize(("failures", "step"), [(5, Step.DONE), (6, Step.FAILED)])
async def test_store_may_be_away_for_five_tries_of_a_stage(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, failures: int, step: Step
) -> None:
    publish, tries = FUNCTIONS[Stage.PUBLISH], itertools.count(1)

    async def away_at_first(*given: Any) -> Facts:
        if next(tries) <= failures:
            raise StoreUnreachable("The artifact store does not answer.")
        return await publish(*given)

    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, away_at_first)
    assert await world.runner.run_next(RUN) is step


def test_tries_of_a_stage_outlast_a_30_second_outage() -> None:
    assert sum(OUTAGE_DELAYS_S) >= 60


@pytest.mark.both_databases
async def test_cancel_and_publish_at_once_agree(world: PipelineWorld) -> None:
    """Whichever commits first wins, and the cluster is as the status says."""
    cancel = world.submissions.cancel(world.developer, ID)
    step, cancelled = await asyncio.gather(
        world.runner.run_next(RUN), cancel, return_exceptions=True
    )
    if isinstance(cancelled, IllegalTransition):
        assert (step, await status(world)) == (Step.DONE, Status.DEPLOYED)
        assert await world.cluster.list_deployments() != []
    else:
        assert (step, await status(world)) == (Step.CANCELLED, Status.CANCELLED)
        await nothing_is_served(world)


@pytest.mark.both_databases
async def test_a_cancel_withdraws_the_wish_before_any_stage_notices(world: PipelineWorld) -> None:
    await world.submissions.cancel(world.developer, ID)
    assert await world.deployments.list_wishes() == []


@pytest.mark.both_databases
async def test_a_stage_cannot_wish_for_a_server_after_the_cancel(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submissions.cancel(world.developer, ID)
    await world.submissions.redeploy(world.developer, ID)
    run = PipelineRun(ID, 2)

    async def deploy(parts: Any, run: PipelineRun, submission: Any) -> Facts:
        await world.submissions.cancel(world.developer, ID)
        await world.server_start.run(run, submission)
        return {}

    for stage in Stage:
        monkeypatch.setitem(FUNCTIONS, stage, deploy if stage is Stage.DEPLOY else nothing)
    steps = [await world.runner.run_next(run) for _ in range(4)]
    assert steps[-1] is Step.CANCELLED
    await nothing_is_served(world)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), PanicError("boom"), asyncio.CancelledError()]
)
async def test_any_exception_in_a_stage_fails_the_submission(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, raising(error))
    assert await world.runner.run_next(RUN) is Step.FAILED
    assert await status(world) is Status.FAILED
    await nothing_is_served(world)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), PanicError("boom"), IntegrityError("x", {}, Exception())]
)
async def test_exception_while_recording_a_stage_end_fails_the_submission(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(world.journal, "end_stage", raising(error))
    assert await world.runner.run_next(RUN) is Step.FAILED
    submission = await world.submission()
    assert submission.status is Status.FAILED
    outcomes = {each.stage: each.outcome for each in submission.stages}
    assert outcomes[Stage.PUBLISH] is Outcome.FAILED
    assert submission.failure is not None
    assert submission.failure.stage is Stage.PUBLISH
    await nothing_is_served(world)


@pytest.mark.both_databases
async def test_an_outage_of_the_database_is_waited_for(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, outages = world.journal.end_stage, iter(range(2 * runner.DATABASE_TRIES))

    async def end_stage(*args: Any) -> Outcome:
        if next(outages, None) is not None:
            raise OUTAGE
        return await real(*args)

    monkeypatch.setattr(world.journal, "end_stage", end_stage)
    assert await world.runner.run_next(RUN) is Step.DONE


@pytest.mark.parametrize("outage", [OUTAGE, NO_CONNECTION, DatabaseUnavailable()])
async def test_database_outage_is_no_failed_try_of_a_stage(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, outage: Exception
) -> None:
    publish, outages = FUNCTIONS[Stage.PUBLISH], iter(range(10))

    async def away_at_first(*given: Any) -> Facts:
        if next(outages, None) is not None:
            raise outage
        return await publish(*given)

    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, away_at_first)
    assert await world.runner.run_next(RUN) is Step.DONE


async def test_try_is_repeated_although_its_log_line_meets_an_outage(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, tries = FUNCTIONS[Stage.PUBLISH], itertools.count()
    log, outages = world.journal.log, iter(range(3))

    async def fails_once(*given: Any) -> Facts:
        if next(tries) == 0:
            raise StoreUnreachable("The artifact store does not answer.")
        return await publish(*given)

    async def log_later(*given: Any, **named: Any) -> None:
        if next(outages, None) is not None:
            raise OUTAGE
        await log(*given, **named)

    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, fails_once)
    monkeypatch.setattr(world.journal, "log", log_later)
    assert await world.runner.run_next(RUN) is Step.DONE


async def test_clean_up_without_the_cluster_is_left_to_the_reconciler(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, raising(RuntimeError("boom")))
    monkeypatch.setattr(
        world.deployments.servers, "stop_withdrawn", raising(ClusterUnreachable("gone"))
    )
    assert await world.runner.run_next(RUN) is Step.FAILED
    assert await world.cluster.list_deployments() != []
    await world.reconciler.reconcile()
    await nothing_is_served(world)


@pytest.mark.both_databases
async def test_late_failure_of_an_earlier_run_leaves_the_later_alone(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_first = iter([True])
    # Nobody looks between the cancel and the redeploy, however long these take.
    monkeypatch.setattr(runner, "WATCH_S", 300.0)

    async def publish(*_: Any) -> Facts:
        if next(is_first, False):  # the stage may be tried again before its end is noticed
            await world.submissions.cancel(world.developer, ID)
            await world.submissions.redeploy(world.developer, ID)
        raise RuntimeError("boom")

    monkeypatch.setitem(FUNCTIONS, Stage.PUBLISH, publish)
    assert await world.runner.run_next(RUN) is Step.CANCELLED
    assert await status(world) is Status.QUEUED


async def test_submission_of_a_newer_version_is_left_as_it_is(world: PipelineWorld) -> None:
    async with world.database.write() as session:
        await session.execute(update(SubmissionRow).values(status=Status.read("scanning")))
    assert await world.runner.run_next(RUN) is Step.LEFT
    assert len(await world.deployments.list_wishes()) == 1


async def test_what_ended_and_is_still_wished_for_is_withdrawn(world: PipelineWorld) -> None:
    async with world.database.write() as session:
        await session.execute(update(SubmissionRow).values(status=Status.CANCELLED))
    assert await world.journal.withdraw_ended() == [ID]
    assert await world.journal.withdraw_ended() == []
    assert await world.deployments.list_wishes() == []


async def nothing(*_: Any) -> Facts:
    return {"artifact_key": "a" * 64}


def raising(error: BaseException) -> Any:
    async def fail(*_: Any) -> Any:
        raise error

    return fail


async def status(world: PipelineWorld) -> Status:
    return (await world.submission()).status


async def nothing_is_served(world: PipelineWorld) -> None:
    assert await world.deployments.list_wishes() == []
    assert await world.cluster.list_deployments() == []
