"""Begins the redeploys that no developer asked for, in the process that leads.

    refused   the model server of its base does not take an adapter that is served, as after a restart with a lower limit: it is merged
    apart     a base has a server of its own beside one of its adapters: it moves there, and its own server stops
    lost      the artifact is no longer in the store, as after a restore into an empty one: it is made again from the Hub

Each is a redeploy like any other, beside what serves. It counts against no quota, and its log and `guanaco status` say why it
began. One that failed is begun again after AGAIN_S, unless its developer can mend the cause; one that was cancelled is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import Blame, ModelServerDied
from guanaco.submissions import Failure, RolloutPhase, Status
from guanaco_server.database.database import Database, after_commit
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import (
    ServedVersion,
    is_adapter,
    is_beside,
    run_of,
    submission_of,
)
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.lifecycle import SERVED
from guanaco_server.submissions.pipeline.adapter_choice import merged_after
from guanaco_server.submissions.queries import by_id_locked
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.records import AT_ONCE, RolloutRecords
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.tables import RolloutRow, SubmissionRow

INTERVAL_S = 5.0
AGAIN_S = 600.0
LOST = "Its artifact is no longer in the store: it is made again from the Hub."
MOVES = "Adapters of this model are served: it moves to their model server, which serves all of them at once."

logger = logging.getLogger(__name__)


class UnaskedRedeploys:
    """``serves_adapters``: adapters are served on their base's model server."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        records: RolloutRecords,
        *,
        serves_adapters: bool,
        is_leader: Callable[[], bool],
    ) -> None:
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._records = records
        self._serves_adapters = serves_adapters
        self._is_leader = is_leader
        self._commits = database.watch_commits()
        self._background = Background("unasked redeploys")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def step(self) -> list[str]:
        """Begin each redeploy that is due; return the keys of their deployments."""
        begun = [
            key
            for key, refusal in self._deployments.adapters.refused.items()
            if await self._merge(key, refusal)
        ]
        if self._serves_adapters:
            apart = await self._deployments.bases_apart()
            begun += [key for key in apart if await self._move(key)]
        for keys in await self._deployments.lost():
            begun += await self._make_again(keys)
        return begun

    async def _merge(self, key: str, refusal: str) -> bool:
        """Redeploy an adapter merged, if it is still served as one. A version beside is ended instead."""
        why = merged_after(refusal)

        async def merge(session: AsyncSession) -> bool:
            row = await by_id_locked(session, submission_of(key))
            served = await self._records.served_version(session, key)
            if row is None or row.status not in SERVED or not _serves_adapter(served):
                self._forget_refusal(session, key)
                return False
            if is_beside(key):
                return await self._end_beside(session, key, refusal)
            if not await self._may_begin(session, row):
                return False
            await self._begin(session, row, why)
            return True

        if not await self._database.write_unit(merge):
            return False
        self._changes.announce(key, Status.QUEUED)
        logger.warning("%s is redeployed: %s", key, why)
        return True

    async def _move(self, key: str) -> bool:
        """Have a base serve on the model server of its adapters."""

        async def move(session: AsyncSession) -> bool:
            row = await by_id_locked(session, key)
            served = await self._records.served_version(session, key)
            if row is None or row.status not in SERVED or served is None or served.base_key:
                return False
            if not await self._may_begin(session, row, is_move=True):
                return False
            moved = served.model_copy(update={"base_key": served.artifact_key})
            await self._begin(session, row, MOVES, moved)
            return True

        if not await self._database.write_unit(move):
            return False
        self._changes.announce(key, Status.QUEUED)
        logger.info("%s moves to the model server of its adapters", key)
        return True

    async def _make_again(self, keys: list[str]) -> list[str]:
        """Redeploy one of the submissions whose artifact is lost; the others are served again when it has made that."""

        async def make(session: AsyncSession) -> str | None:
            rows = [await by_id_locked(session, key) for key in sorted(keys)]
            served = [row for row in rows if row is not None and row.status in SERVED]
            newest = [await queries.rollout(session, row.id) for row in served]
            if any(rollout and rollout.phase.is_in_progress for rollout in newest):
                return None
            for row in served:
                if await self._may_begin(session, row):
                    await self._begin(session, row, LOST)
                    return row.id
            return None

        key = await self._database.write_unit(make)
        if key is None:
            return []
        self._changes.announce(key, Status.QUEUED)
        logger.warning("%s is redeployed: %s", key, LOST)
        return [key]

    async def _may_begin(
        self, session: AsyncSession, row: SubmissionRow, *, is_move: bool = False
    ) -> bool:
        newest = await queries.rollout(session, row.id)
        if newest is None:
            return True
        if newest.phase.is_in_progress:
            return False
        if newest.phase is RolloutPhase.CANCELLED:
            return newest.because is None
        if newest.phase is RolloutPhase.FAILED:
            return newest.because is None or self._is_chance(newest)
        is_brought_back = newest.restores is not None and newest.restores.base_key is None
        return not (is_move and is_brought_back)

    def _is_chance(self, failed: RolloutRow) -> bool:
        is_developers = failed.failure is not None and failed.failure.blame is Blame.DEVELOPER
        age = self._clock.now() - (failed.ended_at or failed.began_at)
        return not is_developers and age >= timedelta(seconds=AGAIN_S)

    async def _begin(
        self,
        session: AsyncSession,
        row: SubmissionRow,
        why: str,
        restores: ServedVersion | None = None,
    ) -> None:
        row.run, row.updated_at = row.run + 1, self._clock.now()
        await self._records.begin(session, row.id, row.run, AT_ONCE, restores, because=why)

    async def _end_beside(self, session: AsyncSession, key: str, refusal: str) -> bool:
        """End the rollout of a new version whose adapter is refused; the version before serves on."""
        newest = await queries.rollout(session, submission_of(key))
        if newest is not None and newest.run == run_of(key) and newest.phase.is_in_progress:
            error = ModelServerDied(f"The model server does not load the adapter: {refusal}")
            failure = Failure(
                code=error.code, detail=error.detail, hint=error.hint, blame=error.blame
            )
            await self._records.give_back(session, newest, RolloutPhase.FAILED, failure)
        self._forget_refusal(session, key)
        return False

    def _forget_refusal(self, session: AsyncSession, key: str) -> None:
        after_commit(session, partial(self._deployments.adapters.forget, key))

    async def _run(self) -> None:
        while True:
            await self._commits.wait(INTERVAL_S)
            if not self._is_leader():
                continue
            try:
                await self.step()
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning("looking for redeploys that are due failed, trying again: %s", error)


def _serves_adapter(served: ServedVersion | None) -> bool:
    return served is not None and is_adapter(served.artifact_key, served.base_key)
