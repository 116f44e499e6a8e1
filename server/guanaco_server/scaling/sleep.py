"""Scaling to zero and back. A deployment sleeps when nobody needs it, and wakes when a conversation goes on.

ready → sleeping      the reconciler stops its server
sleeping → waking     a conversation was opened, or a message came; admission gives it room and starts its server
waking → restarting   and then ready, by the reconciler
"""

from __future__ import annotations

import asyncio
import time

from guanaco.errors import ModelWaking
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase

POLL_S = 0.05
SLACK = 1.5  # a start on a busy machine takes longer than the last one did
SLACK_S = 2.0  # looks of the reconciler before and after


class SleepService:
    """Wakes deployments for messages, which wait at most ``max_wait_s``."""

    def __init__(self, deployments: DeploymentService, max_wait_s: float) -> None:
        self._deployments = deployments
        self._max_wait_s = max_wait_s

    async def asleep(self) -> frozenset[str]:
        """Return the deployments that sleep, and those that were woken and are not ready yet."""
        rows = await self._deployments.list_wishes()
        return frozenset(
            row.submission_id for row in rows if row.phase is Phase.SLEEPING or _is_waking(row)
        )

    async def waking(self) -> frozenset[str]:
        """Return the deployments that were woken and are not ready yet."""
        rows = await self._deployments.list_wishes()
        return frozenset(row.submission_id for row in rows if _is_waking(row))

    async def is_asleep(self, submission_id: str) -> bool:
        row = await self._deployments.find(submission_id)
        return row is not None and row.phase is Phase.SLEEPING

    async def request_wake(self, submission_id: str) -> DeploymentRow | None:
        """Have a deployment woken if it sleeps, without waiting for it; its row."""
        row = await self._deployments.find(submission_id)
        if row is not None and row.phase is Phase.SLEEPING:
            row = await self._deployments.wake(submission_id)
            self._deployments.woken.set()
        return row

    async def wake(self, submission_id: str) -> tuple[str, ...]:
        """Wake a deployment and return its endpoints once a server is ready; none if it does not sleep. ModelWaking if that takes too long."""
        row = await self.request_wake(submission_id)
        if row is None or not _is_waking(row):
            return ()
        self._deployments.woken.set()
        patience_s = min((row.start_s or 0) * SLACK + SLACK_S, self._max_wait_s)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if endpoints := self._deployments.replicas(submission_id):
                return endpoints
            await asyncio.sleep(POLL_S)
        row = await self._deployments.find(submission_id) or row
        raise ModelWaking(submission_id, row.waits_for, row.start_s)


def _is_waking(row: DeploymentRow) -> bool:
    """Tell whether the deployment was woken. One that restarts without a crash was woken, or its platform was started again."""
    return row.phase is Phase.WAKING or (row.phase is Phase.RESTARTING and row.restarts == 0)
