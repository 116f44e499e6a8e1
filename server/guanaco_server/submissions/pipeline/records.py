"""Records what the pipeline does with a submission: stages begun and ended, log lines, statuses, the report."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import GuanacoError, IllegalTransition, SubmissionFailure
from guanaco.recipes import RecipeOverride
from guanaco.submissions import (
    EventKind,
    Failure,
    Level,
    Outcome,
    Stage,
    Status,
    StressReport,
    Submission,
)
from guanaco_server.database.database import Database
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle, queries
from guanaco_server.submissions.events import StatusChanges
from guanaco_server.submissions.service import read_submission
from guanaco_server.submissions.tables import (
    StageRunRow,
    StressReportRow,
    SubmissionRow,
    is_understood,
)

STATUS_DURING = {
    Stage.RESOLVE: Status.CHECKING,
    Stage.CHECK: Status.CHECKING,
    Stage.SERIALIZE: Status.SERIALIZING,
    Stage.DEPLOY: Status.DEPLOYING,
    Stage.STRESS: Status.STRESS_TESTING,
    Stage.PUBLISH: Status.STRESS_TESTING,
}


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineRun:
    """One run of the pipeline over one submission."""

    submission_id: str
    number: int


class RunRecords:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._left: set[str] = set()  # submissions that only a newer version understands

    async def load(self, run: PipelineRun) -> Submission:
        async with self._database.read() as session:
            return read_submission(await _row(session, run))

    async def recipe_override(self, run: PipelineRun) -> RecipeOverride | None:
        async with self._database.read() as session:
            return (await _row(session, run)).recipe_override

    async def list_queued(self) -> list[PipelineRun]:
        async with self._database.read() as session:
            rows = await queries.with_status(session, Status.QUEUED)
        for row in rows:
            if not is_understood(row) and row.id not in self._left:
                self._left.add(row.id)
                logger.warning("%s is left to a worker of a newer version", row.id)
        return [PipelineRun(row.id, row.run) for row in rows if is_understood(row)]

    async def is_wanted(self, run: PipelineRun) -> bool:
        """False when the submission was cancelled, or a later run has taken over."""
        async with self._database.read() as session:
            row = await queries.by_id(session, run.submission_id)
            return row is not None and row.run == run.number and row.status.is_in_progress

    async def is_superseded(self, run: PipelineRun) -> bool:
        """True when a later run has begun."""
        async with self._database.read() as session:
            return (await _row(session, run)).run != run.number

    async def begin_stage(self, run: PipelineRun, stage: Stage) -> Outcome | None:
        """Record that a stage begins, or begins again; its outcome if it had ended before."""
        now = self._clock.now()
        async with self._database.write() as session:
            row = await _row(session, run)
            stage_run = await queries.stage_run(session, *_key(run, stage))
            if stage_run is not None and stage_run.outcome is not None:
                return stage_run.outcome
            if row.run != run.number or not row.status.is_in_progress:
                return Outcome.CANCELLED
            if row.status is not STATUS_DURING[stage]:
                await lifecycle.transition(session, run.submission_id, STATUS_DURING[stage], at=now)
            if stage_run is None:
                session.add(_new_stage_run(run, stage, now))
            else:
                stage_run.attempts += 1
            await self._event(session, run, stage, f"Stage {stage} started.", {"outcome": None})
        self._changes.announce(run.submission_id, STATUS_DURING[stage])
        return None

    async def end_stage(self, run: PipelineRun, stage: Stage, facts: dict[str, Any]) -> None:
        """The stage is done: its end, what it found out (columns of the submission), and after publish the status, in one step."""
        async with self._database.write() as session:
            await self._close(session, run, stage, Outcome.DONE)
            if facts:
                await session.execute(
                    update(SubmissionRow)
                    .where(SubmissionRow.id == run.submission_id)
                    .values(**facts)
                    .execution_options(synchronize_session=False)
                )
            if stage is Stage.PUBLISH:
                await lifecycle.transition(
                    session,
                    run.submission_id,
                    Status.DEPLOYED,
                    at=self._clock.now(),
                    sources=frozenset({Status.STRESS_TESTING}),
                )
        if stage is Stage.PUBLISH:
            self._changes.announce(run.submission_id, Status.DEPLOYED)

    async def fail_stage(self, run: PipelineRun, stage: Stage, error: SubmissionFailure) -> Outcome:
        """The submission fails by this stage, unless it was cancelled meanwhile."""
        try:
            async with self._database.write() as session:
                await self._close(session, run, stage, Outcome.FAILED)
                await lifecycle.transition(
                    session,
                    run.submission_id,
                    Status.FAILED,
                    at=self._clock.now(),
                    failure=as_failure(error, stage),
                )
        except IllegalTransition:
            return await self.cancel_stage(run, stage)
        self._changes.announce(run.submission_id, Status.FAILED)
        return Outcome.FAILED

    async def cancel_stage(self, run: PipelineRun, stage: Stage) -> Outcome:
        async with self._database.write() as session:
            await self._close(session, run, stage, Outcome.CANCELLED)
        return Outcome.CANCELLED

    async def fail_published(self, submission_id: str, error: SubmissionFailure) -> None:
        """A published submission whose model server kept dying; nothing if it was moved on meanwhile."""
        try:
            async with self._database.write() as session:
                await lifecycle.transition(
                    session,
                    submission_id,
                    Status.FAILED,
                    at=self._clock.now(),
                    sources=frozenset({Status.DEPLOYED, Status.INACTIVE}),
                    failure=as_failure(error, None),
                )
                await self._deployments.withdraw(session, submission_id)
        except IllegalTransition:
            return
        self._changes.announce(submission_id, Status.FAILED)

    async def log(
        self, run: PipelineRun, stage: Stage, *lines: str, level: Level = Level.INFO
    ) -> None:
        """Log lines of a stage, in one transaction."""
        async with self._database.write() as session:
            for line in lines:
                await lifecycle.append_event(
                    session,
                    run.submission_id,
                    EventKind.LOG,
                    line,
                    at=self._clock.now(),
                    stage=stage,
                    level=level,
                )

    async def save_report(self, run: PipelineRun, report: StressReport) -> None:
        async with self._database.write() as session:
            await session.merge(
                StressReportRow(submission_id=run.submission_id, run=run.number, report=report)
            )

    async def _close(
        self, session: AsyncSession, run: PipelineRun, stage: Stage, outcome: Outcome
    ) -> None:
        stage_run = await queries.stage_run(session, *_key(run, stage))
        if stage_run is None or stage_run.outcome is not None:
            return
        stage_run.outcome, stage_run.ended_at = outcome, self._clock.now()
        seconds = (stage_run.ended_at - stage_run.started_at).total_seconds()
        await self._event(
            session,
            run,
            stage,
            f"Stage {stage} {outcome} after {seconds:.1f} s.",
            {"outcome": outcome, "duration_s": seconds},
        )

    async def _event(
        self,
        session: AsyncSession,
        run: PipelineRun,
        stage: Stage,
        message: str,
        data: dict[str, Any],
    ) -> None:
        await lifecycle.append_event(
            session,
            run.submission_id,
            EventKind.STAGE,
            message,
            at=self._clock.now(),
            stage=stage,
            data=data,
        )


def as_failure(error: SubmissionFailure, stage: Stage | None) -> Failure:
    return Failure(
        code=error.code, detail=error.detail, hint=error.hint, blame=error.blame, stage=stage
    )


async def _row(session: AsyncSession, run: PipelineRun) -> SubmissionRow:
    row = await queries.by_id(session, run.submission_id)
    if row is None:
        raise GuanacoError(f"The pipeline was asked for {run.submission_id}, which is not there.")
    return row


def _key(run: PipelineRun, stage: Stage) -> tuple[str, int, Stage]:
    return run.submission_id, run.number, stage


def _new_stage_run(run: PipelineRun, stage: Stage, now: Any) -> StageRunRow:
    return StageRunRow(
        submission_id=run.submission_id, run=run.number, stage=stage, attempts=1, started_at=now
    )
