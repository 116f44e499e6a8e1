"""A submission's recipe: chosen when it is deployed, set by an admin, kept over restarts; on both databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from guanaco.accounts import Role
from guanaco.recipes import Recipe
from guanaco.submissions import Outcome, Quantization
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.recipes.hardware import find_gpus
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.recipes.recipe import Fleet, RecipePolicy
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.pipeline import ID, RUN, PipelineWorld, tiny_files
from tests.fixtures.reconciling import reconciler_of
from tests.fixtures.world import World

ROOT = Path(__file__).parents[2]
NAME = deployment_name(ID)
GPUS = RecipePolicy(Fleet(find_gpus(["H100", "MI300X"]), PriceTable({"H100": 2, "MI300X": 9})))


class GpuWorld(PipelineWorld):
    changes = {"gpu_types": ["H100", "MI300X"], "gpu_prices": {"H100": 2, "MI300X": 9}}


class PoorWorld(GpuWorld):
    changes = {**GpuWorld.changes, "monthly_budget": 0.0}


class AlmostPoorWorld(GpuWorld):
    changes = {**GpuWorld.changes, "monthly_budget": 2.4}


async def put(world: World, **override: Any) -> Any:
    return await (await world.http(Role.ADMIN)).put(f"/submissions/{ID}/recipe", json=override)


async def served(world: World) -> Recipe | None:
    http = await world.http(Role.ADMIN)
    found = (await http.get(f"/submissions/{ID}/recipe")).json()["served"]
    return Recipe.model_validate(found) if found else None


async def test_without_gpus_nothing_changes(database: Database, tmp_path: Path) -> None:
    world = PipelineWorld(database)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    spec = world.cluster.deployments[NAME].spec
    assert not any("parallel" in part or "utilization" in part for part in spec.command)
    assert spec.resources.gpu_count == 0
    assert await served(world) is None
    refused = await put(world, gpus=2)
    assert (refused.status_code, refused.json()["error"]) == (422, "invalid_input")
    assert "no GPUs configured" in refused.json()["detail"]


async def test_a_deployment_gets_its_recipe_and_the_cluster_its_gpus(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    spec = world.cluster.deployments[NAME].spec
    assert (spec.resources.gpu_type, spec.resources.gpu_count) == ("H100", 1)
    assert spec.command.count("--max-model-len") == 1
    assert "--tensor-parallel-size" in spec.command
    assert "info: On 1 GPU of the type H100." in await world.log()
    recipe = await served(world)
    assert recipe is not None
    assert recipe.gpu_type == "H100"
    world.clock.advance(3_600)
    assert (await world.costs.of_submission(ID, "ada", world.clock.now())).cost == 2.0


async def test_an_admin_sets_it_and_the_next_redeploy_follows(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path))
    answer = await put(
        world,
        gpu="mi300x",
        gpus=2,
        environment={"HSA_ENABLE": "1"},
        cpus=7,
        memory_bytes=2**36,
    )
    assert answer.status_code == 200, answer.text
    assert (answer.json()["override"]["gpus"], answer.json()["served"]) == (2, None)
    assert await world.deploy() is Outcome.DONE
    spec = world.cluster.deployments[NAME].spec
    assert (spec.resources.gpu_type, spec.resources.gpu_count) == ("MI300X", 2)
    assert (spec.resources.cpus, spec.resources.memory_bytes) == (7, 2**36)
    assert spec.environment["VLLM_ROCM_USE_AITER"] == "1"
    assert spec.environment["HSA_ENABLE"] == "1"
    told = [line for line in await world.log() if "An admin has set the recipe" in line]
    assert "gpu mi300x, gpus 2" in told[0]
    taken_back = await put(world)
    assert taken_back.json()["override"] is None
    assert taken_back.json()["served"]["gpu_type"] == "MI300X"


async def test_what_the_reconciler_starts_again_has_the_same_recipe(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.DONE
    before = world.cluster.deployments[NAME].spec
    reconciler = reconciler_of(world, _never)
    world.cluster.die(NAME)
    await reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]
    assert world.cluster.deployments[NAME].spec == before


@pytest.mark.parametrize(
    ("override", "error", "says"),
    [
        ({"gpu": "L40S"}, "no_such_gpu", "there are H100, MI300X"),
        ({"gpu": "H100", "gpus": 3}, "no_recipe", "cannot be split over 3 GPUs"),
        ({"flags": ["--port=1"]}, "invalid_input", "the platform's own"),
        ({"gpus": "many"}, "invalid_input", "gpus"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(
    database: Database, tmp_path: Path, override: dict[str, Any], error: str, says: str
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path))
    answer = await put(world, **override)
    assert (answer.status_code, answer.json()["error"]) == (422, error)
    assert says in answer.json()["detail"]


async def test_a_developer_reads_her_recipe_and_cannot_set_it(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path))
    ada, bob = [await world.http(Role.DEVELOPER, name) for name in ("ada", "bob")]
    assert (await ada.get(f"/submissions/{ID}/recipe")).status_code == 200
    assert (await ada.put(f"/submissions/{ID}/recipe", json={"gpus": 1})).status_code == 403
    assert (await bob.get(f"/submissions/{ID}/recipe")).status_code == 404


async def test_unknown_family_needs_an_admin_to_name_gpus(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    await world.serialized(tiny_files(tmp_path, model_type="rwkv"))
    answer = await put(world, gpu="H100", gpus=2)
    assert answer.status_code == 200, answer.text
    assert (await put(world, max_num_seqs=8)).json()["error"] == "unsupported_architecture"
    assert await world.deploy() is Outcome.DONE
    assert world.cluster.deployments[NAME].spec.resources.gpu_count == 2


async def test_a_quantized_model_is_measured_unquantized_on_gpus_too(
    database: Database, tmp_path: Path
) -> None:
    world = GpuWorld(database)
    world.model_server.scores = [(-0.7,), (-0.71,)]
    await world.serialized(tiny_files(tmp_path), quantization=Quantization.FP8)
    assert await world.deploy() is Outcome.DONE
    assert world.cluster.starts == [NAME, NAME]
    command = world.cluster.deployments[NAME].spec.command
    assert command.count("--quantization") == command.count("--tensor-parallel-size") == 1
    recipe = await served(world)
    assert recipe is not None
    assert recipe.quantization is Quantization.FP8


async def test_most_of_a_budget_is_a_warning_among_the_events(
    database: Database, tmp_path: Path
) -> None:
    world = AlmostPoorWorld(database)
    await world.serialized(tiny_files(tmp_path))
    submission = await world.journal.load(RUN)
    await world.server_start.run(RUN, submission)
    assert not any(line.startswith("warning: The GPUs of ada") for line in await world.log())
    world.clock.advance(3_600)
    async with world.database.write() as session:
        await session.execute(update(SubmissionRow).values(run=2))
    await world.server_start.run(PipelineRun(ID, 2), submission)
    told = [line for line in await world.log() if line.startswith("warning: The GPUs of ada")]
    assert "2.00 of this month's 2.40 USD" in told[0]


async def test_a_used_up_budget_deploys_nothing_new(database: Database, tmp_path: Path) -> None:
    world = PoorWorld(database)
    await world.serialized(tiny_files(tmp_path))
    assert await world.deploy() is Outcome.FAILED
    failure = (await world.submission()).failure
    assert failure is not None
    assert failure.code == "budget_exceeded"
    assert "0.00 USD this month, and the budget is 0.00 USD" in failure.detail
    assert await world.cluster.list_deployments() == []


async def _never(submission_id: str, lines: list[str]) -> None:
    raise AssertionError(f"{submission_id} was given up: {lines}")
