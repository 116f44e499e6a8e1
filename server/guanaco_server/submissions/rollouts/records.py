"""Replaces the version of a submission that serves by a new one, without a break.

    preparing   the pipeline brings the new server up beside the old one, which serves on
    shifting    conversations that begin from now on go to the new one; of a canary's, only its share
    draining    all go to it, open ones with their next turn; the old one finishes the replies that it has begun
    done        the old one is stopped

A canary shifts until it is worse than the version that serves, which ends it (canaries.py), or until its time is over.
A redeploy that fails or is cancelled before it drains leaves the old version serving, and stops the new one. If the new
one has taken conversations by then, they go back to the old one with their next turn, and it finishes the replies that it has
begun before it is stopped.
The pipeline's runner moves a rollout as far as shifting; loop.py, in the process that leads, does the rest.
Every step is in the database, and each move locks the submission's row first, so a restart in any of them goes on.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.submissions import EventKind, Failure, Level, RedeployRequest, RolloutPhase
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import ServedVersion
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.queries import by_id
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.tables import RolloutRow

AT_ONCE = RedeployRequest()


class RolloutRecords:
    """Each call is part of the caller's transaction, which has locked the submission's row."""

    def __init__(
        self, clock: Clock, deployments: DeploymentService, versions: VersionsBeside
    ) -> None:
        self._clock = clock
        self._deployments = deployments
        self._versions = versions

    async def begin(
        self,
        session: AsyncSession,
        submission_id: str,
        run: int,
        request: RedeployRequest,
        restores: ServedVersion | None = None,
        because: str | None = None,
    ) -> RolloutRow:
        """Begin a run beside the version that serves; ``restores`` is an earlier version that it brings back.

        ``because`` says why the platform begins it by itself.
        """
        rollout = RolloutRow(
            submission_id=submission_id,
            run=run,
            share=request.canary or 1.0,
            canary_s=request.canary_s if request.canary is not None else None,
            restores=restores,
            promotes=request.promote,
            because=because,
            phase=RolloutPhase.PREPARING,
            began_at=self._clock.now(),
        )
        session.add(rollout)
        what = f"Bringing back the version of run {restores.run}" if restores else "Redeploying"
        if request.promote:
            what = "Merging the adapter into its base"
        message = (
            f"Redeploying. {because}" if because else f"{what}, beside the version that serves."
        )
        await self._say(session, rollout, message)
        return rollout

    async def served_version(
        self, session: AsyncSession, submission_id: str
    ) -> ServedVersion | None:
        """Return how the submission is served now; None if it is not."""
        return await self._versions.served_within(session, submission_id)

    async def shift(self, session: AsyncSession, rollout: RolloutRow) -> None:
        """Give the new version the conversations that begin from now on."""
        rollout.phase, rollout.shifting_at = RolloutPhase.SHIFTING, self._clock.now()
        await self._versions.open(session, rollout.key, rollout.share, rollout.shifting_at)
        which = (
            "New conversations"
            if rollout.canary_s is None
            else f"{rollout.share:.1%} of new conversations"
        )
        await self._say(session, rollout, f"{which} go to the new version.")

    async def take_over(self, session: AsyncSession, rollout: RolloutRow) -> tuple[str, ...]:
        """Let the new version serve all conversations, and return its endpoints. Its submission says what that version is from now on."""
        row = await by_id(session, rollout.submission_id)
        assert row is not None, "the caller has locked it"
        replaced = await self._versions.served_within(session, row.id)
        facts = {"merged_because": row.merged_because, "is_promoted": row.is_promoted}
        rollout.replaced = replaced.model_copy(update=facts) if replaced else None
        endpoints = await self._versions.take_over(session, rollout.key)
        rollout.phase, rollout.draining_at = RolloutPhase.DRAINING, self._clock.now()
        row.updated_at = rollout.draining_at  # so that gateways read the row again
        served = await self._versions.served_within(session, row.id)
        assert served is not None, "the new version serves"
        row.artifact_key = served.artifact_key
        if rollout.restores is not None:
            row.merged_because = rollout.restores.merged_because
            row.is_promoted = rollout.restores.is_promoted
        elif rollout.made is not None and rollout.made.artifact_key == row.artifact_key:
            # Else a worker of the version before has made it, and recorded it in the submission at once.
            row.merged_because = rollout.made.merged_because
            row.is_promoted = row.is_promoted or rollout.promotes
        await queries.forget_shown(session, rollout.submission_id, rollout.run)
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
            await self._versions.drain(session, rollout.key)
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
        await queries.forget_shown(session, rollout.submission_id, rollout.run)
        if failure is not None:
            why = f"The redeploy failed, and the version before serves on. {failure.detail}"
            await self._say(session, rollout, why, Level.ERROR)
        elif phase is RolloutPhase.CANCELLED:
            await self._say(session, rollout, "The redeploy was cancelled.")
        else:
            await self._say(session, rollout, "The old version is stopped: the redeploy is done.")

    async def cancel(self, session: AsyncSession, submission_id: str) -> bool:
        """Cancel the submission's rollout; False where none is under way. Versions beside that drain are stopped at once."""
        await self._versions.withdraw(session, submission_id)
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
