"""The stress check of a submission that shares its engine, and of one whose server goes away; cluster and engine are in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Outcome, Stage, Status, StressReport
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import ServerLoad
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.submissions.pipeline import runner
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.pipeline import ID, KEY, RUN, PipelineWorld, tiny_files
from tests.fixtures.world import eventually

SECOND = PipelineRun("acme-tiny_v2", 1)
REQUESTS = 8
CONTENT_REQUESTS = 5 + 3


class Checked(PipelineWorld):
    """A submission that is deployed and has passed its stress check; others of its artifact come after it."""

    changes = {"stress_requests": REQUESTS, "stress_duration_s": 0.05, "stress_rate": 200}

    async def submit(self, run: PipelineRun, **columns: Any) -> None:
        now = self.clock.now()
        row = {"params": GenerationParams(), "formatter": PromptFormatter()} | columns
        async with self.database.write() as session:
            session.add(
                SubmissionRow(
                    id=run.submission_id,
                    account_id=self.developer.id,
                    developer=self.developer.name,
                    repo="acme/tiny",
                    name="tiny",
                    request_hash="",
                    created_at=now,
                    updated_at=now,
                    artifact_key=KEY,
                    status=Status.SERIALIZING,
                    **row,
                )
            )

    async def check(self, run: PipelineRun) -> StressReport:
        """Deploy and check a submission, and return its report."""
        assert await self.runner.run(run, Stage.DEPLOY) is Outcome.DONE
        assert await self.runner.run(run, Stage.STRESS) is Outcome.DONE
        return await self.submissions.stress_report(self.developer, run.submission_id)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> Checked:
    world = Checked(database)
    await world.serialized(tiny_files(tmp_path / "repo"))
    first = await world.check(RUN)
    assert (first.reused, first.beside) == (None, None)
    world.model_server.generations.clear()
    return world


async def test_a_sibling_sends_no_load_of_its_own(world: Checked) -> None:
    await world.submit(SECOND, params=GenerationParams(temperature=0.3))
    report = await world.check(SECOND)
    assert report.is_passed
    assert report.reused is not None
    assert (report.reused.submission_id, report.reused.own_requests) == (ID, 4)
    assert report.beside is not None
    assert report.beside.submissions == 1
    assert len(world.model_server.generations) == CONTENT_REQUESTS + 4


@pytest.mark.parametrize(
    "params",
    [
        GenerationParams(best_of=2),
        GenerationParams(max_output_tokens=GenerationParams().max_output_tokens + 8),
    ],
    ids=["best_of", "max_output_tokens"],
)
async def test_submission_with_dearer_requests_gets_its_own_load(
    world: Checked, params: GenerationParams
) -> None:
    """Prompt and reply together are as long, so the engine is the same."""
    plain = GenerationParams()
    length = plain.max_input_tokens + plain.max_output_tokens
    params = params.model_copy(update={"max_input_tokens": length - params.max_output_tokens})
    await world.submit(SECOND, params=params)
    report = await world.check(SECOND)
    assert report.reused is None
    assert report.beside is not None
    assert report.requests >= REQUESTS


async def test_own_requests_that_miss_a_limit_start_a_load(world: Checked) -> None:
    content, slow = [Script()] * CONTENT_REQUESTS, Script(fault="The model server broke off.")
    world.model_server.scripts = [*content, slow, Script()]
    await world.submit(SECOND)
    report = await world.check(SECOND)
    assert report.reused is None
    assert report.is_passed


async def test_the_load_beside_is_told(world: Checked) -> None:
    (endpoint,) = world.deployments.replicas(ID)
    world.model_server.loads[endpoint] = ServerLoad(3, 1)
    await world.submit(SECOND)
    report = await world.check(SECOND)
    assert report.beside is not None
    assert 3 <= report.beside.most <= 4


async def test_server_killed_during_the_check_is_not_the_developers_fault(
    world: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked again once the reconciler has brought the server back."""
    monkeypatch.setattr(runner, "RETRY_DELAYS_S", (0.0, 0.0))
    (endpoint,) = world.deployments.replicas(ID)
    await world.submit(SECOND)
    assert await world.runner.run(SECOND, Stage.DEPLOY) is Outcome.DONE
    world.model_server.unhealthy.add(endpoint)
    world.cluster.die(deployment_name(ID))

    async def reconcile() -> None:
        await world.deployments.woken.wait()
        for _ in range(3):
            await world.reconciler.reconcile()

    outcome, _ = await asyncio.gather(world.runner.run(SECOND, Stage.STRESS), reconcile())
    assert outcome is Outcome.DONE
    report = await world.submissions.stress_report(world.developer, SECOND.submission_id)
    assert report.is_passed
    assert world.deployments.replicas(SECOND.submission_id) != (endpoint,)


async def note_phase(world: Checked, run: PipelineRun, phase: Phase) -> None:
    row = update(DeploymentRow).where(DeploymentRow.submission_id == run.submission_id)
    async with world.database.write() as session:
        await session.execute(row.values(phase=phase))


async def test_checks_of_an_engine_are_one_at_a_time(world: Checked) -> None:
    """The second is ready in the middle of the first one's load, which then shares the server, and whose load is reused."""
    third = PipelineRun("acme-tiny_v3", 1)

    async def has_asked() -> bool:
        return bool(world.model_server.generations)

    for run in (SECOND, third):
        await world.submit(run, params=GenerationParams(best_of=2))
        assert await world.runner.run(run, Stage.DEPLOY) is Outcome.DONE
    for run in (RUN, third):
        await note_phase(world, run, Phase.STARTING)
    go_on = asyncio.Event()
    world.model_server.scripts = [Script(go_on=go_on), Script()]
    world.model_server.generations.clear()
    begun = asyncio.create_task(world.runner.run(SECOND, Stage.STRESS))
    await eventually(has_asked)
    await note_phase(world, third, Phase.READY)
    other = asyncio.create_task(world.runner.run(third, Stage.STRESS))
    go_on.set()
    assert await asyncio.gather(begun, other) == [Outcome.DONE] * 2
    first, second = [
        await world.submissions.stress_report(world.developer, run.submission_id)
        for run in (SECOND, third)
    ]
    assert first.beside is not None
    assert first.beside.submissions == 1
    assert second.reused is not None
    assert second.reused.submission_id == SECOND.submission_id


BROKEN = Script(fault="The model server cannot be reached or broke off.")


async def test_one_that_dies_on_a_shared_server_is_tried_alone(world: Checked) -> None:
    world.model_server.scripts = [Script(), BROKEN, Script()]
    await world.submit(SECOND)
    assert await world.runner.run(SECOND, Stage.DEPLOY) is Outcome.DONE
    (own,) = world.deployments.replicas(SECOND.submission_id)
    assert (own,) != world.deployments.replicas(ID)
    said = await world.log(SECOND.submission_id)
    assert any("tried again on one of its own" in line for line in said)
    assert await world.runner.run(SECOND, Stage.DEPLOY) is Outcome.DONE, "after a kill"
    assert world.deployments.replicas(SECOND.submission_id) == (own,)


async def test_one_that_dies_alone_too_has_failed(world: Checked) -> None:
    world.model_server.scripts = [Script(), BROKEN, BROKEN]
    await world.submit(SECOND)
    assert await world.runner.run(SECOND, Stage.DEPLOY) is Outcome.FAILED
    failed = await world.submissions.require_visible(world.developer, SECOND.submission_id)
    assert failed.failure is not None
    assert failed.failure.code == "model_server_died"
    assert world.deployments.replicas(ID), "the others are served as before"
