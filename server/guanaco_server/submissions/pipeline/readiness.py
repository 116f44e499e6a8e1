"""Starting a model server and waiting until it can generate, with its log as the evidence when it cannot."""

from __future__ import annotations

import asyncio
import time

from guanaco.errors import EngineMissing, ModelServerDied, ModelServerTooSlow
from guanaco.submissions import Level, Stage, Submission
from guanaco_server.deployments.model_server import Generation, ModelServer, ModelServerFault
from guanaco_server.deployments.service import Deployment, DeploymentService, ServerState
from guanaco_server.submissions.pipeline.journal import Journal, Ticket

POLL_S = 0.25
EVIDENCE_LINES = 5
TEMPLATE_TOKENS = 8  # room for special tokens that vLLM may add to a prompt
ERROR_MARKS = ("ERROR", "Error:", "error:", "Exception", "CRITICAL")


class ServerStart:
    def __init__(
        self,
        journal: Journal,
        deployments: DeploymentService,
        model_server: ModelServer,
        ready_timeout_s: float,
    ) -> None:
        self._journal = journal
        self._deployments = deployments
        self._model_server = model_server
        self._ready_timeout_s = ready_timeout_s

    async def run(self, ticket: Ticket, submission: Submission) -> None:
        """From the wish to the first generation. A server found again after a kill is waited for, not started twice."""
        assert submission.artifact_key is not None, "the serialize stage is done"
        params = submission.params
        deployment = Deployment(
            submission.id,
            ticket.run,
            submission.artifact_key,
            params.max_input_tokens + params.max_output_tokens + TEMPLATE_TOKENS,
        )
        await self._deployments.wish(deployment)
        try:
            await self._deployments.apply(deployment)
        except FileNotFoundError as error:
            raise EngineMissing(
                f"The engine environment is missing: there is no {error.filename}.",
                hint="The operator runs `guanaco doctor`.",
            ) from None
        await self._journal.log(ticket, Stage.DEPLOY, "Model server started; loading the artifact.")
        started = time.monotonic()
        endpoint = await self._wait_healthy(ticket, started)
        await self._generate_once(submission, endpoint)
        await self._deployments.mark_ready(submission.id, endpoint)
        await self._journal.log(
            ticket,
            Stage.DEPLOY,
            f"Model server has generated its first tokens, {time.monotonic() - started:.1f} s after its start.",
        )

    async def require_ready(self, submission_id: str) -> str:
        """The endpoint of a server that was ready; after a restart of the platform it may need a moment to be found again."""
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            if endpoint := self._deployments.endpoints().get(submission_id):
                return endpoint
            await asyncio.sleep(POLL_S)
        raise ModelServerTooSlow(
            f"The model server was not ready within {self._ready_timeout_s:,.0f} s."
        )

    async def _wait_healthy(self, ticket: Ticket, started: float) -> str:
        offset, seen = 0, list[str]()
        while time.monotonic() - started < self._ready_timeout_s:
            sighting = await self._deployments.look(ticket.submission_id)
            lines, offset = await self._deployments.logs(ticket.submission_id, offset)
            if lines:
                await self._journal.log(ticket, Stage.DEPLOY, *lines, level=Level.DEBUG)
                seen.extend(lines)
            if sighting.state is ServerState.HEALTHY and sighting.endpoint:
                return sighting.endpoint
            if sighting.state in (ServerState.EXITED, ServerState.MISSING):
                raise ModelServerDied(
                    f"The model server ended with exit status {sighting.exit_code} before it was ready: {evidence(seen)}",
                    hint=f"`guanaco logs --verbose {ticket.submission_id}` shows everything that it said.",
                )
            await asyncio.sleep(POLL_S)
        raise ModelServerTooSlow(
            f"The model server was not ready within {self._ready_timeout_s:,.0f} s: {evidence(seen)}"
        )

    async def _generate_once(self, submission: Submission, endpoint: str) -> None:
        params = submission.params.model_copy(
            update={
                "stopping_words": [],
                "max_output_tokens": min(8, submission.params.max_output_tokens),
                "best_of": 1,
            }
        )
        tokens = 0
        try:
            generation = Generation(submission.id, "Hello", params)
            async with asyncio.timeout(self._ready_timeout_s):
                async for chunk in self._model_server.generate(endpoint, generation):
                    tokens = chunk.completion_tokens or tokens
        except (ModelServerFault, TimeoutError) as fault:
            raise ModelServerDied(
                f"The model server is up but cannot generate: {fault or 'it did not answer'}."
            ) from None
        if tokens == 0:
            raise ModelServerDied("The model server is up but generated no token.")


def evidence(lines: list[str]) -> str:
    """The last lines that look like an error; else the last lines."""
    errors = [line for line in lines if any(mark in line for mark in ERROR_MARKS)]
    return (
        " | ".join(line.strip() for line in (errors or lines)[-EVIDENCE_LINES:])
        or "it said nothing."
    )
