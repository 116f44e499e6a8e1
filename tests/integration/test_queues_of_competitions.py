"""Tests that what is deployed for a competition waits in the competition's queue, and that this is no fault."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from guanaco.competitions import CompetitionRequest, EntryRule
from guanaco.submissions import Outcome
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from tests.fixtures.pipeline import ID, PipelineWorld, tiny_files

NAME = deployment_name(ID)


async def test_submission_waits_in_its_competitions_queue_and_says_so(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database)
    await world.competitions.put("autumn", competition(world, queue="autumn"))
    await world.competitions.put("closed", competition(world, queue="closed", is_over=True))
    await world.competitions.put("plain", competition(world))
    await world.serialized(tiny_files(tmp_path))
    world.cluster.full_queues.add("autumn")
    assert await world.deploy() is None, "it gives up its place in the pipeline"
    waits = "It waits for a place in the queue autumn."
    assert f"info: Waiting for room: {waits}" in await world.log()
    assert await world.deployments.waits_for(ID) == waits
    assert world.cluster.deployments[NAME].spec.queue == "autumn"
    row = await world.deployments.find(ID)
    assert row is not None
    assert row.queue == "autumn", "what is started again later waits there too"
    world.cluster.admit(NAME)
    assert await world.deployments.waits_for(ID) is None
    assert await world.deploy() is Outcome.DONE
    assert world.cluster.starts == [NAME]


async def test_submission_outside_queued_competitions_uses_the_platforms_queue(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database)
    small = EntryRule(max_parameters=1)
    await world.competitions.put("small", competition(world, queue="small", entry=small))
    await world.serialized(tiny_files(tmp_path), parameter_count=1_000)
    assert await world.deploy() is Outcome.DONE
    assert world.cluster.deployments[NAME].spec.queue is None


async def test_of_two_competitions_the_newest_ones_queue_counts(
    database: Database, tmp_path: Path
) -> None:
    world = PipelineWorld(database)
    for name in ("spring", "summer"):
        await world.competitions.put(name, competition(world, queue=name))
        world.clock.advance(1)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    assert world.cluster.deployments[NAME].spec.queue == "summer"


def competition(
    world: PipelineWorld,
    *,
    queue: str | None = None,
    entry: EntryRule | None = None,
    is_over: bool = False,
) -> CompetitionRequest:
    now = world.clock.now()
    return CompetitionRequest(
        name="A competition",
        starts_at=now - timedelta(days=2),
        ends_at=now - timedelta(days=1) if is_over else None,
        queue=queue,
        entry=entry or EntryRule(),
    )
