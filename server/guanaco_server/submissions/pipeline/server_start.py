"""Starts a model server and waits until it can generate; when it cannot, its log is the evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from guanaco.errors import (
    ClusterRefused,
    EngineMissing,
    ModelServerDied,
    ModelServerTooSlow,
    QuantizationUnsupported,
    SubmissionFailure,
)
from guanaco.recipes import Recipe
from guanaco.submissions import Level, Stage, Submission
from guanaco_server.clusters.cluster import Trouble
from guanaco_server.costs.service import CostService
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import DeploymentHealth, ServerState
from guanaco_server.deployments.model_servers.model_server import AdapterRefused, ModelServerFault
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.takeover import Takeover
from guanaco_server.submissions.pipeline.adapter_choice import AdapterPolicy, can_have_adapters
from guanaco_server.submissions.pipeline.checks.content import ContentChecks
from guanaco_server.submissions.pipeline.checks.quantization import QuantizationCheck
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords, StageWaits
from guanaco_server.submissions.recipes import describe, max_model_tokens

POLL_S = 0.25
ROOM_PATIENCE_S = 3.0  # room that is free is given within a second or two
AGAIN_S = 2.0
BEGUN_AGAIN = (Trouble.NODE_LOST, Trouble.OBJECT_MISSING)  # neither is the server's own doing
EVIDENCE_LINES = 5
ERROR_MARKS = ("ERROR", "Error:", "error:", "Exception", "CRITICAL")


QueueFor = Callable[[Submission], Awaitable[str | None]]


class AdapterNotLoaded(Exception):  # caught by the deploy stage, which merges the adapter
    """The model server of its base does not load the adapter; asking again changes nothing. The text says why."""


class ServerStart:
    def __init__(
        self,
        records: RunRecords,
        deployments: DeploymentService,
        takeover: Takeover,
        content: ContentChecks,
        quantization: QuantizationCheck,
        costs: CostService,
        queue_for: QueueFor,
        adapters: AdapterPolicy,
        ready_timeout_s: float,
    ) -> None:
        self._adapters = adapters
        self._records = records
        self._deployments = deployments
        self._takeover = takeover
        self._content = content
        self._quantization = quantization
        self._costs = costs
        self._queue_for = queue_for
        self._ready_timeout_s = ready_timeout_s

    async def run(self, run: PipelineRun, submission: Submission) -> None:
        """Start the model server and wait until its replies pass. A server that is found again after a kill is not started twice.

        StageWaits where there is no room yet: when there is, this is run again and goes on with the deployment.
        AdapterNotLoaded where the server of an adapter's base does not load it.
        """
        key = await self._records.deployment_key(run)
        is_resumed = await self._deployments.has_wish(key, run.number)
        if not is_resumed:
            await self._content.check_files(run, submission)
        wanted = replace(
            deployment_of(run, submission),
            submission_id=key,
            base_key=await self._deployments.base_of(submission.artifact_key),
            replicas=await self._deployments.replica_count(submission.id),
            queue=await self._queue_for(submission),
        )
        restored = await self._records.restored(run)
        if restored is not None:
            version = replace(wanted.as_version(restored), joins=await self._records.is_move(run))
            endpoint, served = await self._serve(run, version)
            await self._content.check_served(run, submission, endpoint, served.model)
            await self._deployments.mark_ready(key, endpoint)
            return
        deployment = await self._with_recipe(run, wanted, is_resumed)
        deployment = await self._on_server_of_adapters(submission, deployment)
        if deployment.quantization is not None:
            await self._quantization.require_possible(
                deployment.artifact_key, deployment.quantization
            )
        unquantized = await self._unquantized_perplexity(run, deployment)
        started = time.monotonic()
        deployment = replace(deployment, is_private=await self._deployments.is_alone(deployment))
        try:
            endpoint, served = await self._serve_checked(run, submission, deployment)
        except ModelServerDied as death:
            alone = await self._alone_after(run, deployment, death)
            endpoint, served = await self._serve_checked(run, submission, alone)
        if unquantized is not None:
            await self._quantization.compare(run, served, endpoint, unquantized)
        await self._deployments.mark_ready(key, endpoint)
        await self._records.log(
            run,
            Stage.DEPLOY,
            f"Model server is ready, {time.monotonic() - started:.1f} s after its start.",
        )

    async def _serve_checked(
        self, run: PipelineRun, submission: Submission, deployment: Deployment
    ) -> tuple[str, Deployment]:
        endpoint, served = await self._serve_as_wished(run, deployment)
        await self._content.check_served(run, submission, endpoint, served.model)
        return endpoint, served

    async def _alone_after(
        self, run: PipelineRun, deployment: Deployment, death: ModelServerDied
    ) -> Deployment:
        """Return the deployment with a server of its own, if it died on one that was not started for it: that may have had any cause. Else raise the error."""
        if deployment.is_private or not await self._deployments.has_been_given_a_server(deployment):
            raise death
        await self._records.log(
            run,
            Stage.DEPLOY,
            f"{death.detail} That model server was not started for this submission, so this says nothing of the model. It is tried again on one of its own.",
            level=Level.WARNING,
        )
        return replace(deployment, is_private=True)

    async def why_no_adapters(
        self, run: PipelineRun, submission: Submission, base_key: str
    ) -> str | None:
        """Return in a sentence why a server of this base could take no adapters; None if it can."""
        alone = Deployment(
            submission.id,
            run.number,
            base_key,
            max_model_tokens(submission.params, submission.kind),
        )
        try:
            recipe = await self._recipe(run, alone)
        except SubmissionFailure:
            return None  # the next stage says why it cannot be served at all
        if recipe is not None and recipe.gpu_count > 1:
            return f"Its base needs {recipe.gpu_count} GPUs, and a model over several takes no adapters while it runs."
        return None

    async def _on_server_of_adapters(
        self, submission: Submission, deployment: Deployment
    ) -> Deployment:
        """Have a base use a server that takes its adapters, where every server of a base does or one runs already. A run goes on as it began."""
        row = await self._deployments.find(deployment.submission_id)
        if row is not None and row.run == deployment.run:
            return replace(deployment, base_key=row.base_key)
        if deployment.base_key or not can_have_adapters(self._adapters, submission):
            return deployment
        taking = replace(deployment, base_key=deployment.artifact_key)
        is_one_machine = deployment.gpu_count == 1
        if is_one_machine and (
            self._adapters.on_all_bases or await self._deployments.has_engine(taking)
        ):
            return taking
        return deployment

    async def require_ready(self, run: PipelineRun) -> str:
        """Return the endpoint of a server that was ready; after a restart of the platform it may take a moment to be found again."""
        key = await self._records.deployment_key(run)
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            await self._deployments.refresh_endpoints()  # another worker may reconcile
            if endpoints := self._deployments.replicas(key):
                return endpoints[0]
            await asyncio.sleep(POLL_S)
        raise ModelServerTooSlow(
            f"The model server was not ready within {self._ready_timeout_s:,.0f} s."
        )

    async def _with_recipe(
        self, run: PipelineRun, deployment: Deployment, is_resumed: bool
    ) -> Deployment:
        """On GPUs, if the platform has any, and the developer's budget for them is not used up. A resumed run has been let in already."""
        recipe = await self._recipe(run, deployment)
        if recipe is None:
            return deployment
        if not is_resumed:
            warning = await self._costs.require_within_budget(deployment.developer)
            if warning is not None:
                await self._records.log(run, Stage.DEPLOY, warning, level=Level.WARNING)
            await self._records.log(run, Stage.DEPLOY, f"On {describe(recipe)}.")
        return replace(deployment, recipe=recipe)

    async def _recipe(self, run: PipelineRun, deployment: Deployment) -> Recipe | None:
        return await self._deployments.recipes.choose(
            run.submission_id,
            deployment.held_key,
            deployment.max_model_tokens,
            deployment.quantization,
            await self._records.recipe_override(run),
        )

    async def _unquantized_perplexity(
        self, run: PipelineRun, deployment: Deployment
    ) -> float | None:
        """Measured on a server of its own, which is stopped again; None when nothing is quantized."""
        if deployment.quantization is None:
            return None
        known = self._quantization.remembered(deployment)
        if known is not None:
            return known
        await self._records.log(
            run,
            Stage.DEPLOY,
            f"Serving the model unquantized first, to measure what {deployment.quantization} costs.",
        )
        unquantized = replace(deployment, quantization=None, is_private=True)
        larger = await self._recipe(run, unquantized)  # it may need more GPUs
        endpoint, served = await self._serve(run, replace(unquantized, recipe=larger))
        measured = await self._quantization.measure_unquantized(run, served, endpoint)
        await self._deployments.servers.stop_server(served.server_key)
        return measured

    async def _serve_as_wished(
        self, run: PipelineRun, deployment: Deployment
    ) -> tuple[str, Deployment]:
        try:
            return await self._serve(run, deployment)
        except ModelServerDied as death:
            if deployment.quantization is None:
                raise
            raise QuantizationUnsupported(
                f"The model can be served here unquantized, but not as {deployment.quantization}: {death.detail}",
                hint="Submit it without --quantization; docs/quantization.md lists what needs which hardware.",
            ) from death

    async def _serve(self, run: PipelineRun, wanted: Deployment) -> tuple[str, Deployment]:
        """Have a server run, and return its endpoint when it is healthy, with the deployment as it is served.

        One that other submissions use already is not started, nor is one where a server of its shape can be taken over.
        Raise StageWaits if there is no room for it yet.
        """
        deployment = await self._records.wish(run, wanted)
        await self._require_room(run)
        if await self._deployments.is_served_for_others(deployment.submission_id):
            await self._records.log(
                run, Stage.DEPLOY, "A model server of this very kind runs already, and is shared."
            )
            endpoint = await self._wait_joined(deployment)
            await self._load_adapter(run, deployment, endpoint)
            return endpoint, deployment
        deployment = await self._takeover.claim(deployment)
        taken = await self._takeover.swap(deployment)
        if taken is not None:
            await self._records.log(
                run,
                Stage.DEPLOY,
                "A running model server of the same shape has taken the model's weights; no process was started.",
            )
            await self._load_adapter(run, deployment, taken)
            return taken, deployment
        try:
            await self._deployments.servers.apply(deployment)
        except FileNotFoundError as error:
            raise EngineMissing(
                f"The engine environment is missing: there is no {error.filename}.",
                hint="The operator runs `guanaco doctor`.",
            ) from None
        await self._records.log(run, Stage.DEPLOY, "Model server started; loading the artifact.")
        endpoint = await self._wait_healthy(run, deployment, time.monotonic())
        await self._load_adapter(run, deployment, endpoint)
        return endpoint, deployment

    async def _load_adapter(self, run: PipelineRun, deployment: Deployment, endpoint: str) -> None:
        """Have the server that holds the base take the adapter, if the deployment is one."""
        if not deployment.is_adapter:
            return
        started = time.monotonic()
        try:
            await self._deployments.adapters.load(deployment, endpoint)
        except AdapterRefused as fault:
            raise AdapterNotLoaded(str(fault)) from None
        except ModelServerFault as fault:
            raise ModelServerDied(f"The adapter could not be loaded: {fault}") from None
        await self._records.log(
            run,
            Stage.DEPLOY,
            f"The adapter was added to its base's model server in {time.monotonic() - started:.2f} s.",
        )

    async def _wait_joined(self, deployment: Deployment) -> str:
        """Wait until a server that serves others already is healthy. If it has crashed, the reconciler starts it again."""
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            sighting = await self._deployments.servers.look(deployment.server_key)
            if sighting.state is ServerState.HEALTHY and await self._holds(deployment, sighting):
                return sighting.endpoints[0]
            if not await self._deployments.is_served_for_others(deployment.submission_id):
                await self._deployments.servers.apply(deployment)  # the others have left
            await asyncio.sleep(POLL_S)
        raise ModelServerTooSlow(
            f"The model server was not ready within {self._ready_timeout_s:,.0f} s."
        )

    async def _holds(self, deployment: Deployment, sighting: DeploymentHealth) -> bool:
        """Return whether the server holds the deployment's artifact, and is not being swapped or woken for the others."""
        row = await self._deployments.find(deployment.submission_id)
        return row is None or not await self._deployments.servers.holds_another(
            row, sighting.endpoints
        )

    async def _require_room(self, run: PipelineRun) -> None:
        """Wait for room, but only briefly: a stage that waits for longer gives up its place in the pipeline."""
        logged: str | None = None
        deadline = time.monotonic() + ROOM_PATIENCE_S
        while why := await self._records.waits_for(run):
            if why != logged:
                await self._records.note_waiting(run, why)
                logged = why
            if time.monotonic() > deadline:
                raise StageWaits(why)
            await asyncio.sleep(POLL_S)
        if logged is not None:
            await self._records.end_waiting(run)

    async def _wait_healthy(self, run: PipelineRun, deployment: Deployment, started: float) -> str:
        offset, seen, problem, server_key = 0, list[str](), None, deployment.server_key
        applied_at = started
        queued_at: float | None = None
        while time.monotonic() - started < self._ready_timeout_s:
            sighting = await self._deployments.servers.look(server_key)
            if sighting.trouble is Trouble.QUEUED:
                queued_at = queued_at or time.monotonic()
                await self._wait_for_place(run, sighting, queued_at)
            elif queued_at is not None:
                await self._records.end_waiting(run)
                started, queued_at = time.monotonic(), None  # waiting for a place is no slow start
            lines, offset = await self._deployments.servers.logs(server_key, offset)
            seen.extend(lines)
            if (
                lines and deployment.engine_name == run.submission_id
            ):  # else another developer's, perhaps
                await self._records.log(run, Stage.DEPLOY, *lines, level=Level.DEBUG)
            if sighting.state is ServerState.HEALTHY:
                return sighting.endpoints[0]
            is_over = sighting.state in (ServerState.EXITED, ServerState.MISSING)
            if sighting.trouble in BEGUN_AGAIN and await self._deployments.has_wish(
                deployment.submission_id, deployment.run
            ):
                if time.monotonic() - applied_at > AGAIN_S:
                    applied_at = time.monotonic()
                    await self._begin_again(run, deployment, sighting)
            elif is_over:
                raise _server_failure(run.submission_id, sighting, seen)
            problem = sighting.problem
            await asyncio.sleep(POLL_S)
        raise ModelServerTooSlow(
            f"The model server was not ready within {self._ready_timeout_s:,.0f} s: {problem or evidence(seen)}"
        )

    async def _wait_for_place(
        self, run: PipelineRun, sighting: DeploymentHealth, since: float
    ) -> None:
        """Record that the server waits in a queue of its cluster; as for room, only briefly."""
        why = sighting.problem or "It waits for a place in its cluster's queue."
        await self._records.note_waiting(run, why)
        if time.monotonic() - since > ROOM_PATIENCE_S:
            raise StageWaits(why)

    async def _begin_again(
        self, run: PipelineRun, deployment: Deployment, sighting: DeploymentHealth
    ) -> None:
        why = sighting.problem or "It is no longer in the cluster."
        await self._records.log(
            run, Stage.DEPLOY, f"Starting the model server again. {why}", level=Level.WARNING
        )
        await self._deployments.servers.apply(deployment)


def _server_failure(
    submission_id: str, sighting: DeploymentHealth, seen: list[str]
) -> SubmissionFailure:
    """Build the error for a server that ended; one that never ran is not the developer's fault."""
    if sighting.exit_code is None and sighting.problem is not None:
        return ClusterRefused(f"The model server could not be started. {sighting.problem}")
    why = f"{sighting.problem} " if sighting.problem else ""
    return ModelServerDied(
        f"The model server ended with exit status {sighting.exit_code} before it was ready: {why}{evidence(seen)}",
        hint=f"`guanaco logs --verbose {submission_id}` shows everything that it said.",
    )


def deployment_of(run: PipelineRun, submission: Submission) -> Deployment:
    assert submission.artifact_key is not None, "the serialize stage is done"
    return Deployment(
        submission.id,
        run.number,
        submission.artifact_key,
        max_model_tokens(submission.params, submission.kind),
        submission.quantization,
        developer=submission.developer,
    )


def evidence(lines: list[str]) -> str:
    """Return the last lines that look like an error, or else the last lines."""
    errors = [line for line in lines if any(mark in line for mark in ERROR_MARKS)]
    return (
        " | ".join(line.strip() for line in (errors or lines)[-EVIDENCE_LINES:])
        or "it said nothing."
    )
