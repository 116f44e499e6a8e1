"""To zero and back: a deployment sleeps when nobody needs it, and wakes when its conversation goes on.

ready → sleeping      the reconciler stops its server
sleeping → waking     a message came; admission gives it room and starts its server
waking → restarting   and then ready, by the reconciler
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from guanaco.errors import ModelWaking
from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock

POLL_S = 0.05
SLACK = 1.5  # a start on a busy machine takes longer than the last one did
SLACK_S = 2.0  # looks of the reconciler before and after


class Sleeper:
    """``max_wait_s`` is the longest that a message waits for a server to wake."""

    def __init__(
        self, database: Database, clock: Clock, deployments: DeploymentService, max_wait_s: float
    ) -> None:
        self._database = database
        self._clock = clock
        self._deployments = deployments
        self._max_wait_s = max_wait_s

    async def put_to_sleep(self, submission_id: str, unused_since: datetime) -> bool:
        """Unless it was used after ``unused_since``, or is no longer ready."""
        async with self._database.write() as session:
            slept = await queries.put_to_sleep(
                session, submission_id, unused_since, self._clock.now()
            )
        if slept:
            self._deployments.note_replicas(submission_id, ())
            self._deployments.woken.set()
        return slept

    async def wake(self, submission_id: str) -> tuple[str, ...]:
        """The endpoints of a deployment that sleeps, once a server is ready; none of one that does not sleep. ModelWaking when that takes too long."""
        row = await self._deployments.find(submission_id)
        if row is not None and row.phase is Phase.SLEEPING:
            row = await self._ask(submission_id)
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

    async def _ask(self, submission_id: str) -> DeploymentRow | None:
        async with self._database.write() as session:
            await queries.wake(session, submission_id, self._clock.now())
            return await queries.by_submission(session, submission_id)


def _is_waking(row: DeploymentRow) -> bool:
    """One that restarts without a death was woken, or its platform was started again."""
    return row.phase is Phase.WAKING or (row.phase is Phase.RESTARTING and row.restarts == 0)
