"""A quantized model is compared with itself unquantized before it is published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from guanaco.errors import Blame
from guanaco.submissions import GenerationParams, Outcome, Quantization, Stage
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.health import ServerState
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, NotANumber
from guanaco_server.submissions.pipeline.checks.fixed_text import TEXT
from guanaco_server.submissions.pipeline.server_start import deployment_of
from tests.fixtures.pipeline import ID, RUN, PipelineWorld, tiny_files

NAME = deployment_name(ID)
UNQUANTIZED, SLIGHTLY_WORSE, MUCH_WORSE = (math.log(0.5),), (-0.75,), (-0.9,)  # 2, 2.12, 2.46


async def quantized(
    database: Database, folder: Path, *scores: tuple[float, ...] | ModelServerFault, **columns: Any
) -> PipelineWorld:
    world = PipelineWorld(database)
    world.model_server.scores = list(scores) or [UNQUANTIZED]
    await world.serialized(folder, **({"quantization": Quantization.FP8} | columns))
    return world


async def refusal(world: PipelineWorld) -> tuple[str, str]:
    assert await world.deploy() is Outcome.FAILED
    failure = (await world.submission()).failure
    assert failure is not None
    assert (failure.blame, failure.stage) == (Blame.DEVELOPER, Stage.DEPLOY)
    return failure.code, failure.detail


def is_quantized(world: PipelineWorld) -> bool:
    return "--quantization" in world.cluster.deployments[NAME].spec.command


async def test_loss_within_the_bound_passes_and_logs_both_figures(
    database: Database, tmp_path: Path
) -> None:
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, SLIGHTLY_WORSE)
    assert await world.deploy() is Outcome.DONE
    log = "\n".join(await world.log())
    assert "Unquantized, its perplexity on the fixed text is 2." in log
    assert "perplexity 2.117 as fp8, 2 unquantized; 1.1 times is allowed" in log
    assert is_quantized(world)
    assert world.cluster.starts == [NAME, NAME], "unquantized, then quantized"
    (wish,) = await world.deployments.list_wishes()
    assert wish.quantization is Quantization.FP8, "the reconciler starts it so again"


async def test_scoring_waits_for_its_place_at_a_shared_server(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, SLIGHTLY_WORSE)
    score, in_flight = world.model_server.score, list[int]()

    async def noting(endpoint: str, model: str, text: str) -> tuple[float, ...]:
        in_flight.append(world.places.in_flight(ID))
        return await score(endpoint, model, text)

    monkeypatch.setattr(world.model_server, "score", noting)
    assert await world.deploy() is Outcome.DONE
    assert in_flight == [1, 1]
    assert world.places.in_flight(ID) == 0


async def test_a_loss_over_the_bound_is_refused_with_both_figures(
    database: Database, tmp_path: Path
) -> None:
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, MUCH_WORSE)
    code, detail = await refusal(world)
    assert code == "quantization_too_lossy"
    assert "perplexity 2.46 as fp8, 2 unquantized; 1.1 times is allowed" in detail
    assert not world.deployments.replicas(ID)


async def test_repeated_stage_measures_the_unquantized_model_once(
    database: Database, tmp_path: Path
) -> None:
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, SLIGHTLY_WORSE)
    submission = await world.journal.load(RUN)
    await world.server_start.run(RUN, submission)
    await world.server_start.run(RUN, submission)
    assert len(world.model_server.scored) == 3
    assert world.cluster.starts == [NAME, NAME], "the quantized server is found again"


async def test_killed_platform_does_not_confuse_quantized_and_unquantized_servers(
    database: Database, tmp_path: Path
) -> None:
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, SLIGHTLY_WORSE)
    submission = await world.journal.load(RUN)
    await world.server_start.run(RUN, submission)
    world.start_process()
    world.model_server.scores = [UNQUANTIZED, SLIGHTLY_WORSE]
    await world.server_start.run(RUN, submission)
    assert world.cluster.starts == [NAME] * 4
    assert is_quantized(world)


async def test_only_text_that_fits_the_context_is_scored(
    database: Database, tmp_path: Path
) -> None:
    params = GenerationParams(max_input_tokens=30, max_output_tokens=10, stopping_words=[])
    world = await quantized(database, tiny_files(tmp_path), UNQUANTIZED, params=params)
    submission = await world.journal.load(RUN)
    wish = deployment_of(RUN, submission)
    await world.quantization.measure_unquantized(RUN, wish, "memory://1")
    ((_, text),) = world.model_server.scored
    assert world.quantization.remembered(wish) == 2
    assert TEXT.startswith(text)
    assert 30 < await world.tokenizers.whole(submission.artifact_key or "", text) <= 40


@pytest.mark.parametrize(
    ("config", "quantization", "says"),
    [
        ({}, Quantization.INT8, "int8 quantizes the experts of a mixture, and this model has none"),
        ({"quantization_config": {"quant_method": "gptq"}}, Quantization.FP8, "is quantized already"),
    ],
)  # fmt: skip
async def test_settings_that_vllm_refuses_are_refused_before_any_start(
    database: Database,
    tmp_path: Path,
    config: dict[str, Any],
    quantization: Quantization,
    says: str,
) -> None:
    folder = tiny_files(tmp_path, **config)
    world = await quantized(database, folder, quantization=quantization)
    code, detail = await refusal(world)
    assert (code, says in detail) == ("quantization_unsupported", True)
    assert world.cluster.starts == []


async def test_a_mixture_may_be_int8(database: Database, tmp_path: Path) -> None:
    folder = tiny_files(tmp_path, num_local_experts=8)
    world = await quantized(database, folder, quantization=Quantization.INT8)
    assert await world.deploy() is Outcome.DONE
    assert "int8_per_channel_weight_only" in world.cluster.deployments[NAME].spec.command


async def test_an_engine_that_only_dies_quantized_cannot_quantize(
    database: Database, tmp_path: Path
) -> None:
    world = await quantized(database, tiny_files(tmp_path))
    world.cluster.dies_with["--quantization"] = "ERROR: needs compute capability 8.9"
    code, detail = await refusal(world)
    assert code == "quantization_unsupported"
    assert "served here unquantized, but not as fp8" in detail
    assert "needs compute capability 8.9" in detail


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (NotANumber("status 400"), "content_check_failed"),
        (ModelServerFault("It broke off."), "model_server_died"),
    ],
)
async def test_a_text_that_cannot_be_scored_is_told(
    database: Database, tmp_path: Path, fault: ModelServerFault, code: str
) -> None:
    world = await quantized(database, tiny_files(tmp_path), fault)
    assert (await refusal(world))[0] == code


async def test_without_quantization_nothing_is_scored(database: Database, tmp_path: Path) -> None:
    world = await quantized(database, tiny_files(tmp_path), quantization=None)
    assert await world.deploy() is Outcome.DONE
    assert world.model_server.scored == []
    assert (await world.deployments.servers.look(ID)).state is ServerState.HEALTHY
