"""Measures what quantizing costs a model: its perplexity on the fixed text, quantized against unquantized."""

from __future__ import annotations

from guanaco.errors import ModelServerDied, QuantizationTooLossy
from guanaco.submissions import Quantization, Stage
from guanaco_server.artifacts.checking.checks import check_quantization
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.checking.model_config import has_experts
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.model_server import (
    ModelServer,
    ModelServerFault,
    NotANumber,
)
from guanaco_server.submissions.pipeline.checks.content import no_number
from guanaco_server.submissions.pipeline.checks.fixed_text import FixedText, perplexity
from guanaco_server.submissions.pipeline.checks.places import TakePlace, place_for_check
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords


class QuantizationCheck:
    """Compares perplexities. Unquantized ones are remembered for as long as the process lives."""

    def __init__(
        self,
        records: RunRecords,
        configs: ArtifactConfigs,
        text: FixedText,
        model_server: ModelServer,
        take_place: TakePlace,
        max_ratio: float,
    ) -> None:
        self._records = records
        self._configs = configs
        self._text = text
        self._model_server = model_server
        self._take_place = take_place
        self._max_ratio = max_ratio
        self._unquantized: dict[tuple[str, int], float] = {}

    async def require_possible(self, artifact_key: str, quantization: Quantization) -> None:
        """QuantizationUnsupported where the config tells already that vLLM would refuse, or do nothing."""
        config = await self._configs.read(artifact_key, "config.json")
        check_quantization(
            quantization,
            is_quantized="quantization_config" in config,
            has_experts=has_experts(config),
        )

    def remembered(self, deployment: Deployment) -> float | None:
        """Return the unquantized perplexity, if this process has measured it."""
        return self._unquantized.get(_measured(deployment))

    async def measure_unquantized(self, run: PipelineRun, deployment: Deployment, at: str) -> float:
        """Measure the model that is served at this endpoint without quantization."""
        figure = await self._perplexity(deployment, at)
        self._unquantized[_measured(deployment)] = figure
        await self._records.log(
            run, Stage.DEPLOY, f"Unquantized, its perplexity on the fixed text is {figure:.4g}."
        )
        return figure

    async def compare(
        self, run: PipelineRun, deployment: Deployment, at: str, unquantized: float
    ) -> None:
        """QuantizationTooLossy when the model at this endpoint predicts the text too much worse."""
        figure = await self._perplexity(deployment, at)
        figures = f"perplexity {figure:.4g} as {deployment.quantization}, {unquantized:.4g} unquantized; {self._max_ratio:g} times is allowed"
        if not figure <= self._max_ratio * unquantized:
            raise QuantizationTooLossy(
                f"Quantizing costs too much quality: {figures}.",
                hint="Submit it without --quantization.",
            )
        await self._records.log(run, Stage.DEPLOY, f"Quantizing costs little: {figures}.")

    async def _perplexity(self, deployment: Deployment, endpoint: str) -> float:
        text = await self._text.within(deployment)
        try:
            with await place_for_check(self._take_place, deployment.submission_id):
                scores = await self._model_server.score(endpoint, deployment.model, text)
        except NotANumber as fault:
            raise no_number(text, str(fault)) from None
        except ModelServerFault as fault:
            raise ModelServerDied(
                f"The model server is up but cannot score a text: {fault}"
            ) from None
        return perplexity(scores)


def _measured(deployment: Deployment) -> tuple[str, int]:
    """Return what the unquantized figure depends on: the artifact, and how much of the text fits."""
    return deployment.artifact_key, deployment.max_model_tokens
