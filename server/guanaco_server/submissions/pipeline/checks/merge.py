"""Measures how far a promoted adapter, merged into its base, is from the one that is served beside it unmerged.

Both are asked for the log-probabilities of the fixed text's tokens. A merge rounds once to the base's dtype and an added
adapter does not, so they differ by rounding; whatever is far more than that is a fault of one of the two.

An adapter that has its ratings sleeps by then, and is woken to be compared. Either there is a number in the report, or a sentence that says why not.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from guanaco.errors import StageFault
from guanaco.submissions import Divergence, Level, Stage
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.submissions.pipeline.checks.fixed_text import FixedText, perplexity
from guanaco_server.submissions.pipeline.checks.places import TakePlace, place_for_check
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords

ROOM_PATIENCE_S = 30.0  # in which an idle server goes to sleep, and gives its room
POLL_S = 0.5


@dataclass(frozen=True)
class MergeComparison:
    """``why_not`` says why the two were not compared; neither is set where there is nothing to compare."""

    divergence: Divergence | None = None
    why_not: str | None = None


class MergeCheck:
    def __init__(
        self,
        records: RunRecords,
        deployments: DeploymentService,
        model_server: ModelServer,
        text: FixedText,
        take_place: TakePlace,
        ready_timeout_s: float,
    ) -> None:
        self._records = records
        self._deployments = deployments
        self._model_server = model_server
        self._text = text
        self._take_place = take_place
        self._ready_timeout_s = ready_timeout_s

    async def measure(self, run: PipelineRun, endpoint: str) -> MergeComparison:
        """Compare the run's server with the version that serves, if that is an adapter."""
        merged = await self._deployments.find(await self._records.deployment_key(run))
        served = await self._deployments.find(run.submission_id)
        if merged is None or served is None or not served.is_adapter or merged.is_adapter:
            return MergeComparison()
        unmerged = Deployment.of(served)
        text = await self._text.within(unmerged)
        try:
            if served.is_asleep:
                await self._wake(run)
            before = await self._score(await self._unmerged_endpoint(run), unmerged, text)
            after = await self._score(endpoint, Deployment.of(merged), text)
        except (ModelServerFault, StageFault) as fault:
            message = f"The merged model was not compared with the version that serves: {fault}"
            await self._records.log(run, Stage.STRESS, message, level=Level.WARNING)
            return MergeComparison(why_not=message)
        found = divergence_of(after, before)
        await self._records.log(
            run,
            Stage.STRESS,
            f"Merged and unmerged, the log-probabilities of {found.tokens} tokens differ by {found.mean:.2g} on average, {found.largest:.2g} at most.",
        )
        return MergeComparison(found)

    async def _wake(self, run: PipelineRun) -> None:
        message = (
            "The version that serves sleeps; it is woken, to be compared with the merged model."
        )
        await self._records.log(run, Stage.STRESS, message)
        await self._deployments.wake(run.submission_id)
        self._deployments.woken.set()

    async def _unmerged_endpoint(self, run: PipelineRun) -> str:
        """Wait until the version that serves answers, and return where. ModelServerFault if it does not."""
        began = time.monotonic()
        while True:
            await self._deployments.refresh_endpoints()  # another process may reconcile
            if endpoints := self._deployments.replicas(run.submission_id):
                return endpoints[0]
            row = await self._deployments.find(run.submission_id)
            if row is None or not await self._records.is_wanted(run):
                raise ModelServerFault("the redeploy has ended.")
            if not row.is_asleep and row.problem is not None and row.trouble is None:
                raise ModelServerFault(row.problem)  # the server is well, and does not take it
            waited_s = time.monotonic() - began
            if row.is_asleep and waited_s >= ROOM_PATIENCE_S:
                why = row.waits_for or "Nothing has woken it."
                raise ModelServerFault(f"it sleeps, and there is no room to wake it. {why}")
            if waited_s >= self._ready_timeout_s:
                limit_s = self._ready_timeout_s
                raise ModelServerFault(f"it was not ready within {limit_s:,.0f} s.")
            await asyncio.sleep(POLL_S)

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
