"""Measures how far a promoted adapter, merged into its base, is from the one that is served beside it unmerged.

Both are asked for the log-probabilities of the fixed text's tokens. A merge rounds once to the base's dtype and an added
adapter does not, so they differ by rounding; whatever is far more than that is a fault of one of the two.
"""

from __future__ import annotations

from guanaco.errors import StageFault
from guanaco.submissions import Divergence, Level, Stage
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.submissions.pipeline.checks.fixed_text import FixedText, perplexity
from guanaco_server.submissions.pipeline.checks.places import TakePlace, place_for_check
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords


class MergeCheck:
    def __init__(
        self,
        records: RunRecords,
        deployments: DeploymentService,
        model_server: ModelServer,
        text: FixedText,
        take_place: TakePlace,
    ) -> None:
        self._records = records
        self._deployments = deployments
        self._model_server = model_server
        self._text = text
        self._take_place = take_place

    async def measure(self, run: PipelineRun, endpoint: str) -> Divergence | None:
        """Compare the run's server with the version that serves; None where that is no adapter, or cannot be asked now."""
        merged = await self._deployments.find(await self._records.deployment_key(run))
        served = await self._deployments.find(run.submission_id)
        if merged is None or served is None or not served.is_adapter or merged.is_adapter:
            return None
        unmerged = Deployment.of(served)
        endpoints = self._deployments.replicas(run.submission_id)
        text = await self._text.within(unmerged)
        try:
            if not endpoints:
                raise ModelServerFault("it has no model server now.")
            before = await self._score(endpoints[0], unmerged, text)
            after = await self._score(endpoint, Deployment.of(merged), text)
        except (ModelServerFault, StageFault) as fault:
            message = f"The merged model was not compared with the version that serves: {fault}"
            await self._records.log(run, Stage.STRESS, message, level=Level.WARNING)
            return None
        found = divergence_of(after, before)
        await self._records.log(
            run,
            Stage.STRESS,
            f"Merged and unmerged, the log-probabilities of {found.tokens} tokens differ by {found.mean:.2g} on average, {found.largest:.2g} at most.",
        )
        return found

    async def _score(self, endpoint: str, deployment: Deployment, text: str) -> tuple[float, ...]:
        with await place_for_check(self._take_place, deployment.submission_id):
            return await self._model_server.score(endpoint, deployment.model, text)


def divergence_of(merged: tuple[float, ...], unmerged: tuple[float, ...]) -> Divergence:
    """Compare the log-probabilities of the same tokens."""
    differences = [abs(one - other) for one, other in zip(merged, unmerged, strict=True)]
    return Divergence(
        tokens=len(differences),
        mean=sum(differences) / len(differences),
        largest=max(differences),
        merged_perplexity=perplexity(merged),
        unmerged_perplexity=perplexity(unmerged),
    )
