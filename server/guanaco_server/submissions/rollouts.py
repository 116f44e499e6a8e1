"""Replaces the version of a submission that serves by a new one, without a break.

    preparing   the pipeline brings the new server up beside the old one, which serves on
    shifting    conversations that begin from now on go to the new one
    draining    all go to it, open ones with their next turn; the old one finishes the replies that it has begun
    done        the old one is stopped

A redeploy that fails or is cancelled before it drains leaves the old version serving, and stops the new one.
The pipeline's runner moves a rollout as far as shifting; the loop here, in the process that leads, does the rest.
Every step is in the database, and each move locks the submission's row first, so a restart in any of them goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import EventKind, Failure, Level, RolloutPhase
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle, queries
from guanaco_server.submissions.events import StatusChanges
from guanaco_server.submissions.tables import RolloutRow

INTERVAL_S = 1.0
SHIFT_S = (
    5.0  # new conversations show for so long that the new version works, before open ones follow
)
LEARN_S = 3.0  # by then every gateway process has read which servers to use: it does so each second

logger = logging.getLogger(__name__)


class RolloutRecords:
    """Each call is part of the caller's transaction, which has locked the submission's row."""

    def __init__(self, clock: Clock, deployments: DeploymentService) -> None:
        self._clock = clock
        self._deployments = deployments

    async def begin(self, session: AsyncSession, submission_id: str, run: int) -> RolloutRow:
        rollout = RolloutRow(
            submission_id=submission_id,
            run=run,
            phase=RolloutPhase.PREPARING,
            began_at=self._clock.now(),
        )
        session.add(rollout)
        await self._say(session, rollout, "Redeploying beside the version that serves.")
        return rollout

    async def shift(self, session: AsyncSession, rollout: RolloutRow) -> None:
        """Give the new version the conversations that begin from now on."""
        rollout.phase, rollout.shifting_at = RolloutPhase.SHIFTING, self._clock.now()
        await self._deployments.open_beside(session, rollout.key, 1.0, rollout.shifting_at)
        await self._say(session, rollout, "New conversations go to the new version.")

    async def take_over(self, session: AsyncSession, rollout: RolloutRow) -> tuple[str, ...]:
        """Let the new version serve all conversations, and return its endpoints."""
        endpoints = await self._deployments.take_over(session, rollout.key)
        rollout.phase, rollout.draining_at = RolloutPhase.DRAINING, self._clock.now()
        await self._say(
            session,
            rollout,
            "The new version serves all conversations; the old one finishes its replies.",
        )
        return endpoints

    async def end(
        self,
        session: AsyncSession,
        rollout: RolloutRow,
        phase: RolloutPhase,
        failure: Failure | None = None,
    ) -> None:
        """End it, and withdraw the deployment beside: the new version, or the old one that has drained."""
        rollout.phase, rollout.failure, rollout.ended_at = phase, failure, self._clock.now()
        await self._deployments.withdraw(session, rollout.key)
        if failure is not None:
            why = f"The redeploy failed, and the version before serves on. {failure.detail}"
            await self._say(session, rollout, why, Level.ERROR)
        elif phase is RolloutPhase.CANCELLED:
            await self._say(session, rollout, "The redeploy was cancelled.")
        else:
            await self._say(session, rollout, "The old version is stopped: the redeploy is done.")

    async def cancel(self, session: AsyncSession, submission_id: str) -> bool:
        """Cancel the submission's rollout; False where none is under way. An old version that drains is stopped at once."""
        rollout = await queries.rollout(session, submission_id)
        if rollout is None or not rollout.phase.is_in_progress:
            return False
        await self.end(session, rollout, RolloutPhase.CANCELLED)
        return True

    async def _say(
        self, session: AsyncSession, rollout: RolloutRow, message: str, level: Level = Level.INFO
    ) -> None:
        await lifecycle.append_event(
            session,
            rollout.submission_id,
            EventKind.LOG,
            message,
            at=self._clock.now(),
            level=level,
            data={"rollout": rollout.phase, "run": rollout.run},
        )


class RolloutLoop:
    """Moves rollouts on from shifting, in the process that leads."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        records: RolloutRecords,
        *,
        is_leader: Callable[[], bool],
        longest_reply_s: float,
    ) -> None:
        """``longest_reply_s``: an old version that still works on something after that is stopped."""
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._records = records
        self._is_leader = is_leader
        self._longest_reply = timedelta(seconds=longest_reply_s)
        self._background = Background("rollouts")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def step(self) -> None:
        """Move each rollout on that is due."""
        async with self._database.read() as session:
            rollouts = await queries.rollouts_in(
                session, RolloutPhase.SHIFTING, RolloutPhase.DRAINING
            )
        for rollout in rollouts:
            if rollout.phase is RolloutPhase.SHIFTING:
                await self._shift(rollout)
            else:
                await self._drain(rollout)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._is_leader():
                continue
            try:
                await self.step()
            except (DBAPIError, OSError) as error:
                logger.warning("moving rollouts on failed, trying again: %s", error)

    async def _shift(self, rollout: RolloutRow) -> None:
        """Let the new version take over once it has served new conversations for a while, and has its replicas."""
        if not self._is_over(
            rollout.shifting_at, SHIFT_S
        ) or not await self._deployments.can_take_over(rollout.key):
            return
        async with self._database.write() as session:
            row = await queries.by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if row is None or current is None or not _is_same(current, rollout):
                return
            endpoints = await self._records.take_over(session, current)
            status = row.status
        self._deployments.note_replicas(rollout.key, ())
        self._deployments.note_replicas(rollout.submission_id, endpoints)
        logger.info("%s is served by run %d now", rollout.submission_id, rollout.run)
        self._changes.announce(rollout.submission_id, status)

    async def _drain(self, rollout: RolloutRow) -> None:
        """End the rollout once the old version has finished its replies."""
        if not await self._has_drained(rollout):
            return
        async with self._database.write() as session:
            await queries.by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if current is not None and _is_same(current, rollout):
                await self._records.end(session, current, RolloutPhase.DONE)

    async def _has_drained(self, rollout: RolloutRow) -> bool:
        if not self._is_over(rollout.draining_at, LEARN_S):
            return False
        if await self._deployments.is_idle(rollout.key):
            return True
        return self._is_over(rollout.draining_at, LEARN_S + self._longest_reply.total_seconds())

    def _is_over(self, since: datetime | None, seconds: float) -> bool:
        return since is not None and self._clock.now() - since >= timedelta(seconds=seconds)


def _is_same(current: RolloutRow, seen: RolloutRow) -> bool:
    """Whether nobody has moved the rollout on since it was read."""
    return current.run == seen.run and current.phase is seen.phase
