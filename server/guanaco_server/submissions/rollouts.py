"""Replaces the version of a submission that serves by a new one, without a break.

    preparing   the pipeline brings the new server up beside the old one, which serves on
    shifting    conversations that begin from now on go to the new one; of a canary's, only its share
    draining    all go to it, open ones with their next turn; the old one finishes the replies that it has begun
    done        the old one is stopped

A canary shifts until it is worse than the version that serves, which ends it (canaries.py), or until its time is over.
A redeploy that fails or is cancelled before it drains leaves the old version serving, and stops the new one. If the new
one has taken conversations by then, they go back to the old one with their next turn, and it finishes the replies that it has
begun before it is stopped.
The pipeline's runner moves a rollout as far as shifting; the loop here, in the process that leads, does the rest.
Every step is in the database, and each move locks the submission's row first, so a restart in any of them goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import EventKind, Failure, Level, RedeployRequest, RolloutPhase
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import Arm, ConversationStart, ServedVersion, VersionBeside
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.sequential import Proportion
from guanaco_server.submissions import lifecycle, queries
from guanaco_server.submissions.canaries import Shown, judge, slow_from
from guanaco_server.submissions.events import StatusChanges
from guanaco_server.submissions.tables import RolloutRow

INTERVAL_S = 1.0
SHIFT_S = (
    5.0  # new conversations show for so long that the new version works, before open ones follow
)
LEARN_S = 3.0  # by then every gateway process has read which servers to use: it does so each second


@dataclass(frozen=True)
class Vote:
    """The rating of a conversation."""

    talk: ConversationStart
    is_up: bool


ListVotes = Callable[[str, datetime], Awaitable[Sequence[Vote]]]

logger = logging.getLogger(__name__)


class RolloutRecords:
    """Each call is part of the caller's transaction, which has locked the submission's row."""

    def __init__(self, clock: Clock, deployments: DeploymentService) -> None:
        self._clock = clock
        self._deployments = deployments

    async def begin(
        self,
        session: AsyncSession,
        submission_id: str,
        run: int,
        request: RedeployRequest,
        restores: ServedVersion | None = None,
    ) -> RolloutRow:
        """Begin a run beside the version that serves; ``restores`` is an earlier version that it brings back."""
        rollout = RolloutRow(
            submission_id=submission_id,
            run=run,
            share=request.canary or 1.0,
            canary_s=request.canary_s if request.canary is not None else None,
            restores=restores,
            phase=RolloutPhase.PREPARING,
            began_at=self._clock.now(),
        )
        session.add(rollout)
        what = f"Bringing back the version of run {restores.run}" if restores else "Redeploying"
        await self._say(session, rollout, f"{what}, beside the version that serves.")
        return rollout

    async def shift(self, session: AsyncSession, rollout: RolloutRow) -> None:
        """Give the new version the conversations that begin from now on."""
        rollout.phase, rollout.shifting_at = RolloutPhase.SHIFTING, self._clock.now()
        await self._deployments.open_beside(
            session, rollout.key, rollout.share, rollout.shifting_at
        )
        which = (
            "New conversations"
            if rollout.canary_s is None
            else f"{rollout.share:.1%} of new conversations"
        )
        await self._say(session, rollout, f"{which} go to the new version.")

    async def take_over(self, session: AsyncSession, rollout: RolloutRow) -> tuple[str, ...]:
        """Let the new version serve all conversations, and return its endpoints."""
        rollout.replaced = await self._deployments.version_within(session, rollout.submission_id)
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
        await self._deployments.withdraw(session, rollout.key)
        await self._note_end(session, rollout, phase, failure)

    async def give_back(
        self,
        session: AsyncSession,
        rollout: RolloutRow,
        phase: RolloutPhase,
        failure: Failure | None = None,
    ) -> None:
        """End it before the new version has taken over. What conversations it has go back to the old one, and it drains."""
        if rollout.phase is RolloutPhase.SHIFTING:
            await self._deployments.drain(session, rollout.key)
        else:
            await self._deployments.withdraw(session, rollout.key)
        await self._note_end(session, rollout, phase, failure)

    async def _note_end(
        self,
        session: AsyncSession,
        rollout: RolloutRow,
        phase: RolloutPhase,
        failure: Failure | None,
    ) -> None:
        rollout.phase, rollout.failure, rollout.ended_at = phase, failure, self._clock.now()
        if failure is not None:
            why = f"The redeploy failed, and the version before serves on. {failure.detail}"
            await self._say(session, rollout, why, Level.ERROR)
        elif phase is RolloutPhase.CANCELLED:
            await self._say(session, rollout, "The redeploy was cancelled.")
        else:
            await self._say(session, rollout, "The old version is stopped: the redeploy is done.")

    async def cancel(self, session: AsyncSession, submission_id: str) -> bool:
        """Cancel the submission's rollout; False where none is under way. Versions beside that drain are stopped at once."""
        await self._deployments.withdraw_beside(session, submission_id)
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
        list_votes: ListVotes,
        longest_reply_s: float,
    ) -> None:
        """``list_votes`` lists a submission's rated conversations that began since a time. ``longest_reply_s``: an old version that still works on something after that is stopped."""
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._records = records
        self._is_leader = is_leader
        self._list_votes = list_votes
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
        for key, since in await self._deployments.draining():
            if key not in {rollout.key for rollout in rollouts}:
                await self._stop_drained(key, since)

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
        """Let the new version take over once it has served new conversations for a while, and has its replicas. End a canary that is worse."""
        if rollout.canary_s is not None and await self._end_if_worse(rollout):
            return
        shift_s = SHIFT_S if rollout.canary_s is None else rollout.canary_s
        if not self._is_over(
            rollout.shifting_at, shift_s
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

    async def _end_if_worse(self, rollout: RolloutRow) -> bool:
        """Compare the two versions; True if the canary was ended for it."""
        assert rollout.shifting_at is not None, "it shifts"
        beside = VersionBeside(rollout.key, rollout.share, rollout.shifting_at)
        votes = await self._list_votes(rollout.submission_id, rollout.shifting_at)
        down = [
            Proportion(sum(not each.is_up for each in mine), len(mine))
            for mine in (
                [vote for vote in votes if beside.takes(vote.talk) is is_new]
                for is_new in (True, False)
            )
        ]
        async with self._database.write() as session:
            await queries.by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if current is None or not _is_same(current, rollout):
                return True
            if current.slow_from is None:
                await _learn_what_is_slow(session, current)
            new, old = [await _shown(session, current, is_new) for is_new in (True, False)]
            worse = judge(new, old, current.slow_from, *down)
            if worse is None:
                return False
            failure = Failure(
                code=worse.code, detail=worse.detail, hint=worse.hint, blame=worse.blame
            )
            await self._records.give_back(session, current, RolloutPhase.FAILED, failure)
        self._deployments.note_replicas(rollout.key, ())
        logger.info("the canary of %s is ended: %s", rollout.submission_id, worse.detail)
        return True

    async def _drain(self, rollout: RolloutRow) -> None:
        """End the rollout once the old version has finished its replies."""
        if not await self._has_drained(rollout.key, rollout.draining_at):
            return
        async with self._database.write() as session:
            await queries.by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if current is not None and _is_same(current, rollout):
                await self._records.end(session, current, RolloutPhase.DONE)

    async def _stop_drained(self, key: str, since: datetime) -> None:
        """Stop a new version whose rollout has ended once it has finished its replies."""
        if await self._has_drained(key, since):
            async with self._database.write() as session:
                await self._deployments.withdraw(session, key)

    async def _has_drained(self, key: str, since: datetime | None) -> bool:
        if not self._is_over(since, LEARN_S):
            return False
        if await self._deployments.is_idle(key):
            return True
        return self._is_over(since, LEARN_S + self._longest_reply.total_seconds())

    def _is_over(self, since: datetime | None, seconds: float) -> bool:
        return since is not None and self._clock.now() - since >= timedelta(seconds=seconds)


async def _shown(session: AsyncSession, rollout: RolloutRow, is_new: bool) -> Shown:
    row = await queries.shown(session, Arm(rollout.submission_id, rollout.run, is_new))
    return Shown(row.replies, row.faults, list(row.waits)) if row else Shown()


async def _learn_what_is_slow(session: AsyncSession, rollout: RolloutRow) -> None:
    """Once the old version has shown enough: what came before is then forgotten, so that what is compared did not choose the limit."""
    rollout.slow_from = slow_from((await _shown(session, rollout, is_new=False)).waits)
    if rollout.slow_from is None:
        return
    for is_new in (True, False):
        row = await queries.shown(session, Arm(rollout.submission_id, rollout.run, is_new))
        if row is not None:
            row.waits = []


def _is_same(current: RolloutRow, seen: RolloutRow) -> bool:
    """Whether nobody has moved the rollout on since it was read."""
    return current.run == seen.run and current.phase is seen.phase
