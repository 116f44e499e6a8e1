"""Runs of the pipeline that outlive processes, versions and their own workflows: real DBOS, real processes, kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dbos import WorkflowStatusString
from sqlalchemy import update

from guanaco.submissions import Stage, Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import DeploymentRow, Phase
from tests.conftest import POSTGRES
from tests.fixtures.pipelines import LOOK_S, WITHIN_S, Pipelines
from tests.fixtures.world import eventually

ALL = [stage.value for stage in Stage]
SCAN = 'SCAN = StageSpec("scan", Status.CHECKING, "Scan the weights")'
SKIPPABLE_SCAN = (
    'SCAN = StageSpec("scan", Status.CHECKING, "Scan the weights", may_be_skipped=True)'
)


@pytest.fixture
def pipelines(database: Database, tmp_path: Path) -> Iterator[Pipelines]:
    pipelines = Pipelines(database, tmp_path)
    yield pipelines
    pipelines.stop_all()


@pytest.mark.parametrize(
    ("entry", "held", "done"),
    [
        # The new stage comes next, was passed already, or may be left out then.
        (SCAN, "check", ["resolve", "check", "scan", "serialize", "deploy", "stress", "publish"]),
        (SCAN, "deploy", ["resolve", "check", "serialize", "scan", "deploy", "stress", "publish"]),
        (SKIPPABLE_SCAN, "deploy", ALL),
    ],
)
async def test_a_run_begun_before_a_stage_existed_is_finished(
    pipelines: Pipelines, entry: str, held: str, done: list[str]
) -> None:
    pipelines.set(f"hold-{held}")
    old = pipelines.start()
    submission_id = await pipelines.submit()
    await pipelines.says(f"begun {held} {submission_id}")
    pipelines.kill(old)
    pipelines.unset(f"hold-{held}")

    pipelines.start(code=pipelines.next_version(entry))

    await pipelines.reaches(submission_id, Status.DEPLOYED)
    assert pipelines.stages() == done
    events = pipelines.world.events.follow(submission_id, 0, wait=False)
    statuses = [e.data["status"] async for e in events if e is not None and e.kind == "status"]
    assert statuses == sorted(set(statuses), key=statuses.index), "no status comes twice"


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_run_begun_by_version_1_is_finished(pipelines: Pipelines) -> None:
    pipelines.set("hold-deploy")
    old = pipelines.start(is_version_1=True)
    submission_id = await pipelines.submit()
    await pipelines.says(f"begun deploy {submission_id}")
    waiting_id = await pipelines.submit()
    pipelines.kill(old)
    pipelines.unset("hold-deploy")

    pipelines.start()

    await pipelines.reaches(submission_id, Status.DEPLOYED)
    await pipelines.reaches(waiting_id, Status.DEPLOYED)
    assert [line for line in pipelines.said() if line == f"done check {submission_id}"] == [
        f"done check {submission_id}"
    ]


@pytest.mark.parametrize("database_url", [POSTGRES], indirect=True)
async def test_two_versions_side_by_side_finish_every_run(pipelines: Pipelines) -> None:
    pipelines.start(executor_id="old", role="worker")
    pipelines.start(executor_id="new", role="worker", code=pipelines.next_version(SCAN))
    ids = [await pipelines.submit() for _ in range(6)]
    for submission_id in ids:
        await pipelines.reaches(submission_id, Status.DEPLOYED)
    for submission_id in ids:
        done = [line.split()[1] for line in pipelines.said() if line.endswith(submission_id)]
        assert set(ALL) <= set(done)


@pytest.mark.slow
@pytest.mark.parametrize("is_panic", [True, False])
async def test_an_exception_of_any_kind_fails_the_submission(
    pipelines: Pipelines, is_panic: bool
) -> None:
    pipelines.set("panic-stress" if is_panic else "fail-stress")
    pipelines.start()
    submission_id = await pipelines.submit()
    failed = await pipelines.reaches(submission_id, Status.FAILED)
    assert failed["failure"]["code"] == ("stage_fault" if is_panic else "model_server_died")
    assert await pipelines.world.deployments.list_wishes() == []


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_run_whose_workflow_was_deleted_goes_on(pipelines: Pipelines) -> None:
    submission_id = await killed_in_deploy(pipelines)
    with pipelines.workflows() as client:
        client.delete_workflow(f"{submission_id}:1")
    pipelines.start()
    await pipelines.reaches(submission_id, Status.DEPLOYED)
    assert pipelines.stages() == ALL


async def test_run_whose_workflow_was_cancelled_outside_fails_with_a_sentence(
    pipelines: Pipelines,
) -> None:
    submission_id = await killed_in_deploy(pipelines)
    with pipelines.workflows() as client:
        client.cancel_workflow(f"{submission_id}:1")
    pipelines.start()
    failed = await pipelines.reaches(submission_id, Status.FAILED)
    assert "was cancelled in the workflow database" in failed["failure"]["detail"]
    assert failed["failure"]["stage"] == "deploy"
    assert await pipelines.world.deployments.list_wishes() == []


@pytest.mark.slow
@pytest.mark.both_databases
async def test_waiting_for_room_holds_no_place(pipelines: Pipelines) -> None:
    pipelines.start(pipeline_concurrency=1, max_model_servers=1)
    first, second = await pipelines.submit(), await pipelines.submit()
    await waits_in_deploy(pipelines, first)
    await waits_in_deploy(pipelines, second)
    await give_room(pipelines, second)
    await pipelines.reaches(second, Status.DEPLOYED)
    assert (await pipelines.read(first))["status"] == "deploying"
    stages = {run["stage"]: run for run in (await pipelines.read(second))["stages"]}
    assert (stages["deploy"]["attempts"], stages["deploy"]["waits_for"]) == (1, None)


async def test_a_kill_while_a_run_waits_for_room_loses_nothing(pipelines: Pipelines) -> None:
    process = pipelines.start(max_model_servers=1)
    submission_id = await pipelines.submit()
    await waits_in_deploy(pipelines, submission_id)
    pipelines.kill(process)
    await give_room(pipelines, submission_id)
    pipelines.start(max_model_servers=1)
    await pipelines.reaches(submission_id, Status.DEPLOYED)


async def test_a_run_that_waits_for_room_can_be_cancelled(pipelines: Pipelines) -> None:
    pipelines.start(max_model_servers=1)
    submission_id = await pipelines.submit()
    await waits_in_deploy(pipelines, submission_id)
    await pipelines.http.post(f"/submissions/{submission_id}/cancel")
    assert await pipelines.world.deployments.list_wishes() == []


async def killed_in_deploy(pipelines: Pipelines) -> str:
    pipelines.set("hold-deploy")
    process = pipelines.start()
    submission_id = await pipelines.submit()
    await pipelines.says(f"begun deploy {submission_id}")
    pipelines.kill(process)
    pipelines.unset("hold-deploy")
    return submission_id


async def waits_in_deploy(pipelines: Pipelines, submission_id: str) -> None:
    """Wait until the stage says that it waits, and its workflow has ended."""

    async def is_waiting() -> bool:
        stages = (await pipelines.read(submission_id))["stages"]
        return bool(stages) and stages[-1]["waits_for"] is not None

    async def has_ended() -> bool:
        with pipelines.workflows() as client:
            found = client.list_workflows(workflow_id_prefix=f"{submission_id}:1")
        return [each.status for each in found] == [WorkflowStatusString.SUCCESS.value]

    await eventually(is_waiting, WITHIN_S, LOOK_S)
    await eventually(has_ended, WITHIN_S, LOOK_S)


async def give_room(pipelines: Pipelines, submission_id: str) -> None:
    """Give room as the admission does; its loop does not run here."""
    async with pipelines.world.database.write() as session:
        await session.execute(
            update(DeploymentRow)
            .where(DeploymentRow.submission_id == submission_id)
            .values(phase=Phase.STARTING, waits_for=None)
        )
