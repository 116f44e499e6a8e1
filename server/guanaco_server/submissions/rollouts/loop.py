"""Moves rollouts on from shifting, in the process that leads: lets new versions take over, ends canaries that are worse, and
stops what has drained. It reads all of it from the database each time, so a restart goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import Failure, RolloutPhase, Status
from guanaco_server.database.commits import LOOK_ANYWAY_S
from guanaco_server.database.database import Database, after_commit
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import Arm, ConversationStart, VersionBeside
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.sequential import Proportion
from guanaco_server.submissions.queries import by_id_locked
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.canaries import VersionOutcomes, judge, slow_from
from guanaco_server.submissions.rollouts.records import RolloutRecords
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.tables import RolloutRow

INTERVAL_S = 1.0
SHIFT_S = (
    5.0  # new conversations show for so long that the new version works, before open ones follow
)
LEARN_S = 3.0  # by then every gateway process has read which servers to use: it does so each second


@dataclass(frozen=True)
class CanaryVote:
    """A user's first rating of a conversation that began since, as it was given."""

    talk: ConversationStart
    is_up: bool


ListVotes = Callable[[str, datetime], Awaitable[Sequence[CanaryVote]]]

logger = logging.getLogger(__name__)


class RolloutLoop:
    """Moves rollouts on from shifting, in the process that leads."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        versions: VersionsBeside,
        records: RolloutRecords,
        *,
        is_leader: Callable[[], bool],
        list_votes: ListVotes,
        longest_reply_s: float,
    ) -> None:
        """``list_votes`` lists the first rating of each user, of a submission's conversations that began since a time. ``longest_reply_s``: an old version that still works on something after that is stopped."""
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._versions = versions
        self._records = records
        self._is_leader = is_leader
        self._list_votes = list_votes
        self._longest_reply = timedelta(seconds=longest_reply_s)
        self._commits = database.watch_commits()
        self._background = Background("rollouts")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def step(self) -> bool:
        """Move each rollout on that is due. Return whether any is in progress or drains."""
        async with self._database.read() as session:
            rollouts = await queries.rollouts_in(
                session, RolloutPhase.SHIFTING, RolloutPhase.DRAINING
            )
        for rollout in rollouts:
            if rollout.phase is RolloutPhase.SHIFTING:
                await self._shift(rollout)
            else:
                await self._drain(rollout)
        draining = await self._versions.draining()
        for key, since in draining:
            if key not in {rollout.key for rollout in rollouts}:
                await self._stop_drained(key, since)
        return bool(rollouts or draining)

    async def _run(self) -> None:
        is_any = False
        while True:
            has_changed = await self._commits.wait(
                INTERVAL_S, INTERVAL_S if is_any else LOOK_ANYWAY_S
            )
            if not self._is_leader():
                is_any = is_any or has_changed  # for the process that begins to lead
                continue
            try:
                is_any = await self.step()
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning("moving rollouts on failed, trying again: %s", error)

    async def _shift(self, rollout: RolloutRow) -> None:
        """Let the new version take over once it has served new conversations for a while, and has its replicas. End a canary that is worse."""
        if rollout.canary_s is not None and await self._end_if_worse(rollout):
            return
        shift_s = SHIFT_S if rollout.canary_s is None else rollout.canary_s
        if not self._is_over(
            rollout.shifting_at, shift_s
        ) or not await self._versions.can_take_over(rollout.key):
            return

        async def take_over(session: AsyncSession) -> tuple[tuple[str, ...], Status] | None:
            row = await by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if row is None or current is None or not _is_same(current, rollout):
                return None
            return await self._records.take_over(session, current), row.status

        taken_over = await self._database.write_unit(take_over)
        if taken_over is None:
            return
        endpoints, status = taken_over
        self._deployments.note_replicas(rollout.key, ())
        await self._deployments.note_taken_over(rollout.submission_id, endpoints)
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

        async def end_if_worse(session: AsyncSession) -> bool:
            await by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if current is None or not _is_same(current, rollout):
                return True
            if current.slow_from is None:
                await _learn_slowness_limit(session, current)
            new, old = [
                await _count_conversations(session, current, is_new) for is_new in (True, False)
            ]
            worse = judge(new, old, *down, share=current.share)
            if worse is None:
                return False
            failure = Failure(
                code=worse.code, detail=worse.detail, hint=worse.hint, blame=worse.blame
            )
            await self._records.give_back(session, current, RolloutPhase.FAILED, failure)
            ended = "the canary of %s is ended: %s", rollout.submission_id, worse.detail
            after_commit(session, partial(logger.info, *ended))
            return True

        return await self._database.write_unit(end_if_worse)

    async def _drain(self, rollout: RolloutRow) -> None:
        """End the rollout once the old version has finished its replies."""
        if not await self._has_drained(rollout.key, rollout.draining_at):
            return

        async def end(session: AsyncSession) -> None:
            await by_id_locked(session, rollout.submission_id)
            current = await queries.rollout(session, rollout.submission_id)
            if current is not None and _is_same(current, rollout):
                await self._records.end(session, current, RolloutPhase.DONE)

        await self._database.write_unit(end)

    async def _stop_drained(self, key: str, since: datetime) -> None:
        """Stop a new version whose rollout has ended once it has finished its replies."""
        if await self._has_drained(key, since):
            await self._database.write_unit(
                lambda session: self._deployments.withdraw(session, key)
            )

    async def _has_drained(self, key: str, since: datetime | None) -> bool:
        if not self._is_over(since, LEARN_S):
            return False
        if await self._versions.is_idle(key):
            return True
        return self._is_over(since, LEARN_S + self._longest_reply.total_seconds())

    def _is_over(self, since: datetime | None, seconds: float) -> bool:
        return since is not None and self._clock.now() - since >= timedelta(seconds=seconds)


async def _count_conversations(
    session: AsyncSession, rollout: RolloutRow, is_new: bool
) -> VersionOutcomes:
    arm = Arm(rollout.submission_id, rollout.run, is_new)
    return VersionOutcomes(*await queries.shown(session, arm, rollout.slow_from))


async def _learn_slowness_limit(session: AsyncSession, rollout: RolloutRow) -> None:
    """Set the limit once the old version has shown enough. What came before is then forgotten, so that what is compared did not choose the limit."""
    arm = Arm(rollout.submission_id, rollout.run, is_new=False)
    rollout.slow_from = slow_from(await queries.first_waits(session, arm))
    if rollout.slow_from is not None:
        await queries.forget_waits(session, rollout.submission_id, rollout.run)


def _is_same(current: RolloutRow, seen: RolloutRow) -> bool:
    """Return whether nobody has moved the rollout on since it was read."""
    return current.run == seen.run and current.phase is seen.phase
