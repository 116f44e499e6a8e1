"""The routing decision, in memory: a snapshot of what is published, and the endpoints as they are now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sqlalchemy.exc import DBAPIError

from guanaco.errors import ModelUnavailable, NoModelAvailable
from guanaco.submissions import Status
from guanaco_server.background import Background
from guanaco_server.deployments.scaling.sleep import Sleeper
from guanaco_server.deployments.scaling.traffic import Traffic
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.routing.policy import AssignmentPolicy, LiveSubmission
from guanaco_server.submissions.service import ServingSubmission, SubmissionService

REFRESH_S = 1.0  # how old a feedback count may be; statuses come at once

logger = logging.getLogger(__name__)


class RoutingService:
    def __init__(
        self,
        submissions: SubmissionService,
        deployments: DeploymentService,
        count_feedback: Callable[[], Awaitable[dict[str, int]]],
        policy: AssignmentPolicy,
        traffic: Traffic,
        sleeper: Sleeper,
    ) -> None:
        self._submissions = submissions
        self._deployments = deployments
        self._count_feedback = count_feedback
        self._policy = policy
        self._traffic = traffic
        self._sleeper = sleeper
        self._serving: dict[str, ServingSubmission] = {}
        self._feedback: dict[str, int] = {}
        self._refreshed_at = float("-inf")
        self._woken = asyncio.Event()
        self._background = Background("routing snapshot")

    async def start(self) -> None:
        await self.refresh()
        self._background.start(self._keep_fresh())

    async def stop(self) -> None:
        await self._background.stop()

    def note_change(self) -> None:
        """Something was published or withdrawn: look at once."""
        self._woken.set()

    def age_s(self) -> float:
        """How old the snapshot is."""
        return time.monotonic() - self._refreshed_at

    async def refresh(self) -> None:
        now = time.monotonic()
        await self._traffic.write()
        await self._deployments.refresh_endpoints()
        serving = await self._submissions.list_serving()
        self._feedback = await self._count_feedback()
        self._serving = {submission.id: submission for submission in serving}
        self._refreshed_at = now

    def live(self) -> list[LiveSubmission]:
        """What takes conversations now, ready or asleep, in no order."""
        return [
            self._live(serving)
            for serving in self._serving.values()
            if serving.status is Status.DEPLOYED
        ]

    async def assign(self) -> LiveSubmission:
        """A submission for a new conversation; NoModelAvailable when none can take one."""
        candidates = self._candidates()
        if not candidates:
            await self.refresh()
            candidates = self._candidates()
        if not candidates:
            raise NoModelAvailable
        chosen = self._policy.choose(candidates)
        self._traffic.note(chosen.serving.id)
        return chosen

    async def target(self, submission_id: str) -> LiveSubmission:
        """A conversation's own submission, while it is served: also an inactive one, and one that sleeps is woken. ModelUnavailable otherwise, ModelWaking when it takes long."""
        if submission_id not in self._serving:
            await self.refresh()
        elif not self._deployments.replicas(submission_id):
            await self._deployments.refresh_endpoints()
        serving = self._serving.get(submission_id)
        if serving is None:
            raise ModelUnavailable(submission_id)
        self._traffic.note(submission_id)
        live = self._live(serving)
        if live.endpoints:
            return live
        return replace(live, endpoints=await self._sleeper.wake(submission_id))

    def _candidates(self) -> list[LiveSubmission]:
        return [live for live in self.live() if live.endpoints]

    def _live(self, serving: ServingSubmission) -> LiveSubmission:
        return LiveSubmission(
            serving, self._deployments.replicas(serving.id), self._feedback.get(serving.id, 0)
        )

    async def _keep_fresh(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), REFRESH_S)
            self._woken.clear()
            try:
                await self.refresh()
            except (DBAPIError, OSError) as error:
                logger.warning("the routing snapshot stays as it was: %s", error)
