"""Measures what quantizing costs a model: its perplexity on a fixed text, quantized against unquantized.

Perplexity is exp(-1/(n-1) · Σ log p(token i | tokens before i)) over a text's tokens 2 to n; Jelinek, Mercer,
Bahl and Baker, "Perplexity, a measure of the difficulty of speech recognition tasks", 1977. Only the ratio of the
two says something: both are of the same text, in the same tokens, by the same artifact. The text was written for
Guanaco and has about 300 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from guanaco.errors import ModelServerDied, QuantizationTooLossy
from guanaco.submissions import Quantization, Stage
from guanaco_server.artifacts.checking.checks import check_quantization
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.checking.model_config import has_experts
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_server import ModelServer, ModelServerFault, NotANumber
from guanaco_server.submissions.pipeline.content_checks import no_number
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords
from guanaco_server.tokenization.service import Tokenizers

SPARE_TOKENS = 8  # for special tokens, and for the one that vLLM insists on generating


class QuantizationCheck:
    """Compares perplexities. Unquantized ones are remembered for as long as the process lives."""

    def __init__(
        self,
        records: RunRecords,
        configs: ArtifactConfigs,
        tokenizers: Tokenizers,
        model_server: ModelServer,
        max_ratio: float,
    ) -> None:
        self._records = records
        self._configs = configs
        self._tokenizers = tokenizers
        self._model_server = model_server
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
        """The unquantized perplexity, if this process has measured it."""
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
        text = await self._text_within(deployment)
        try:
            scores = await self._model_server.score(endpoint, deployment.model, text)
        except NotANumber as fault:
            raise no_number(text, str(fault)) from None
        except ModelServerFault as fault:
            raise ModelServerDied(
                f"The model server is up but cannot score a text: {fault}"
            ) from None
        return perplexity(scores)

    async def _text_within(self, deployment: Deployment) -> str:
        """Return the fixed text, cut to what the model server has room for."""
        room = deployment.max_model_tokens - SPARE_TOKENS
        end = await self._tokenizers.characters_of(deployment.artifact_key, TEXT, room)
        return TEXT[:end]


def perplexity(logprobs: Sequence[float]) -> float:
    """Infinite where it is too large for a float."""
    try:
        return math.exp(-math.fsum(logprobs) / len(logprobs))
    except OverflowError:
        return math.inf


def _measured(deployment: Deployment) -> tuple[str, int]:
    """Return what the unquantized figure depends on: the artifact, and how much of the text fits."""
    return deployment.artifact_key, deployment.max_model_tokens


TEXT = """\
The ferry left the island at six in the morning, when the harbour was still grey and the gulls had not begun to \
quarrel. Marta stood at the rail with a paper cup of coffee and watched the lighthouse grow small. She had kept it \
for eleven years, and now a machine the size of a suitcase did the same work without sleeping, without complaining \
about the cold, and without writing down the names of the ships that went by.

"You could have stayed," said the boy who sold the tickets. "They would have let you live there."

"A house without work is only a house," she answered. She took a notebook out of her coat and opened it on the last \
page. There were three columns: the date, the weather and the ship. In the first years she had written only what was \
necessary. Later she had added other things: a seal on the rocks, a letter from her sister, the taste of the first \
tomato that ever ripened on the south side of the tower.

The boy read a few lines over her shoulder. He asked why she had counted the ships at all, since nobody had told her \
to. Marta thought about it until the engine changed its note and the mainland came out of the mist. If you look at \
the same water every day, she told him, you have to decide whether you see the same thing each time or something new. \
Counting was how she had decided. Then she gave him the notebook, because two pages were empty, and because the next \
ferry would leave at noon.
"""
