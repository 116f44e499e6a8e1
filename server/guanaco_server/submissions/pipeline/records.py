"""Records what the pipeline does with a submission: stages begun and ended, log lines, statuses, the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import SecretStr
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import GuanacoError, IllegalTransition, SubmissionFailure
from guanaco.recipes import RecipeOverride
from guanaco.submissions import (
    IN_PROGRESS,
    PIPELINE_STATUSES,
    EventKind,
    Failure,
    Level,
    Outcome,
    RolloutPhase,
    Stage,
    Status,
    StressReport,
    Submission,
    last_to_read_hub,
)
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import (
    ServedVersion,
    is_beside,
    run_of,
    submission_of,
)
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions import lifecycle, queries
from guanaco_server.submissions.hub_tokens import HubTokens
from guanaco_server.submissions.pipeline.sweep_order import held_back, member_of
from guanaco_server.submissions.reading import read_submission
from guanaco_server.submissions.rollouts.records import RolloutRecords
from guanaco_server.submissions.runs import queries as run_queries
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.sweeps import queries as sweep_queries
from guanaco_server.submissions.tables import (
    MadeArtifact,
    RolloutRow,
    StageRunRow,
    StressReportRow,
    SubmissionRow,
    is_understood,
)

LAST_STAGE = tuple(Stage)[-1]  # its end publishes the submission


class RunEnded(Exception):
    """The run is no longer wanted: it was cancelled, or a later run has begun. Caught by the stage runner."""


class StageWaits(Exception):
    """The stage waits for room, and is run again when there is some; its text says why. Caught by the stage runner."""


class NewerVersionRuns(Exception):
    """The submission has a status or parameters that this version does not know. Caught by the stage runner."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineRun:
    """One run of the pipeline over one submission."""

    submission_id: str
    number: int


@dataclass(frozen=True)
class UnfinishedRun:
    """A run in progress; one beside a version that serves counts as queued. ``waits_for`` says why its stage waits; None while it need not."""

    run: PipelineRun
    status: Status
    waits_for: str | None


class RunRecords:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        changes: StatusChanges,
        deployments: DeploymentService,
        hub_tokens: HubTokens,
        rollouts: RolloutRecords,
    ) -> None:
        self._rollouts = rollouts
        self._hub_tokens = hub_tokens
        self._database = database
        self._clock = clock
        self._changes = changes
        self._deployments = deployments
        self._left: set[str] = set()  # submissions that only a newer version understands

    async def load(self, run: PipelineRun) -> Submission:
        """Read the submission as this run makes it: beside another version, that serves another artifact perhaps."""
        async with self._database.read() as session:
            submission = read_submission(await _row(session, run))
            rollout = await _rollout(session, run)
        return submission.model_copy(update=_own_facts(submission, rollout) if rollout else {})

    async def hub_token(self, run: PipelineRun) -> SecretStr | None:
        """Return the developer's own Hub token, if one was given for this run."""
        async with self._database.read() as session:
            return await self._hub_tokens.read(session, run.submission_id)

    async def found_by_sweep(self, submission: Submission) -> dict[str, Any]:
        """Return the facts to which the other variants of the submission's sweep are pinned; none if it is the first."""
        async with self._database.read() as session:
            members = await sweep_queries.submissions_of(session, [submission.sweep or ""])
        names = ("commit", "base_repo", "base_commit")
        for row in members:
            if row.commit is not None and row.id != submission.id:
                return {name: getattr(row, name) for name in names}
        return {}

    async def recipe_override(self, run: PipelineRun) -> RecipeOverride | None:
        async with self._database.read() as session:
            return (await _row(session, run)).recipe_override

    async def list_unfinished(self) -> list[UnfinishedRun]:
        """List every run in progress, the oldest first; without the variants of a sweep that wait for another one."""
        async with self._database.read() as session:
            rows = await run_queries.unfinished_runs(session, IN_PROGRESS)
            sweeps = {row.sweep for row, _ in rows if row.sweep is not None}
            held = held_back(map(member_of, await sweep_queries.submissions_of(session, sweeps)))
        for row, _ in rows:
            if not is_understood(row) and row.id not in self._left:
                self._left.add(row.id)
                logger.warning("%s is left to a worker of a newer version", row.id)
        return [
            UnfinishedRun(
                PipelineRun(row.id, row.run),
                row.status if row.status.is_in_progress else Status.QUEUED,
                waits_for,
            )
            for row, waits_for in rows
            if is_understood(row) and not (row.id in held and row.run == 1)
        ]

    async def is_wanted(self, run: PipelineRun) -> bool:
        """Return False if the submission was cancelled, or a later run has taken over."""
        async with self._database.read() as session:
            row = await queries.by_id(session, run.submission_id)
            return row is not None and await _is_wanted(session, row, run)

    async def next_stage(self, run: PipelineRun) -> Stage | Outcome:
        """Return the stage to run now, or how the run has ended."""
        async with self._database.read() as session:
            row = await _row(session, run)
            stage_runs = await run_queries.stage_runs(session, run.submission_id)
            is_wanted = await _is_wanted(session, row, run)
            rollout = await _rollout(session, run)
        if row.run == run.number and (row.status.is_unknown or not is_understood(row)):
            raise NewerVersionRuns
        outcomes = {each.stage: each.outcome for each in stage_runs if each.run == run.number}
        if rollout is not None and rollout.restores is not None:
            passed = (stage for stage in Stage if stage.spec.holds_for_good)
            outcomes |= dict.fromkeys(passed, Outcome.DONE)
        if is_wanted:
            return first_unfinished(outcomes) or Outcome.DONE
        if row.run == run.number and outcomes.get(LAST_STAGE) is Outcome.DONE:
            return Outcome.DONE
        return Outcome.FAILED if Outcome.FAILED in outcomes.values() else Outcome.CANCELLED

    async def begin_stage(self, run: PipelineRun, stage: Stage) -> Outcome | None:
        """Record that a stage begins, or begins again; its outcome if it had ended before.

        A stage that goes on after it waited makes no new attempt.
        """
        now = self._clock.now()

        async def begin(session: AsyncSession) -> Outcome | Status:
            row = await _row(session, run)
            stage_run = await run_queries.stage_run(session, *_key(run, stage))
            if stage_run is not None and stage_run.outcome is not None:
                return stage_run.outcome
            if not await _is_wanted(session, row, run):
                return Outcome.CANCELLED
            is_beside = await _rollout(session, run) is not None
            status = row.status if is_beside else _later(row.status, stage.spec.status)
            if row.status is not status:
                await lifecycle.transition(session, run.submission_id, status, at=now)
            if stage_run is not None and stage_run.waits_for is not None:
                stage_run.waits_for = None
            else:
                _begin(session, stage_run, run, stage, now)
                await self._event(session, run, stage, f"Stage {stage} started.", {"outcome": None})
            return status

        begun = await self._database.write_unit(begin)
        if isinstance(begun, Outcome):
            return begun
        self._changes.announce(run.submission_id, begun)
        return None

    async def end_stage(self, run: PipelineRun, stage: Stage, facts: dict[str, Any]) -> Outcome:
        """Record a stage's end, the facts that it found (columns of the submission), and after the last stage the status, in one transaction.

        CANCELLED where the submission was cancelled before it could be published.
        """

        async def end(session: AsyncSession) -> None:
            await self._close(session, run, stage, Outcome.DONE)
            await _note_facts(session, run, facts)
            await self._forget_hub_token(session, run, stage)
            if stage is LAST_STAGE:
                await self._require_wanted(session, run)
                await self._publish(session, run)

        try:
            await self._database.write_unit(end)
        except (IllegalTransition, RunEnded):
            return await self.cancel_stage(run, stage)
        if stage is LAST_STAGE:
            await self._announce(run.submission_id)
        return Outcome.DONE

    async def _forget_hub_token(
        self, session: AsyncSession, run: PipelineRun, stage: Stage
    ) -> None:
        """Delete the token after the last stage that may read the Hub: that of an adapter is merged if its base's server does not load it."""
        row = await _row(session, run)
        last = last_to_read_hub(is_adapter=row.base_repo is not None)
        if stage is last and row.run == run.number:
            await queries.delete_hub_token(session, run.submission_id)

    async def deployment_key(self, run: PipelineRun) -> str:
        """Return the key of the run's deployment: the submission's own, or one beside it."""
        async with self._database.read() as session:
            rollout = await _rollout(session, run)
        return rollout.key if rollout else run.submission_id

    async def restored(self, run: PipelineRun) -> ServedVersion | None:
        """Return the earlier version that the run brings back; None if it makes a new one."""
        async with self._database.read() as session:
            rollout = await _rollout(session, run)
        return rollout.restores if rollout else None

    async def refused_because(self, run: PipelineRun) -> str | None:
        """Return why the run merges an adapter that its base's server refused while it was served; None where it does not."""
        async with self._database.read() as session:
            rollout = await _rollout(session, run)
        return rollout.because if rollout else None

    async def is_move(self, run: PipelineRun) -> bool:
        """Return whether the run brings the version that serves to a server of others."""
        async with self._database.read() as session:
            rollout = await _rollout(session, run)
        return rollout is not None and rollout.is_move

    async def waits_for(self, run: PipelineRun) -> str | None:
        """Return in a sentence why the run has no room yet; None if it has room."""
        return await self._deployments.waits_for(await self.deployment_key(run))

    async def note_waiting(self, run: PipelineRun, why: str) -> None:
        """Record why the open stage waits, and log it whenever the reason changes."""

        async def note(session: AsyncSession) -> None:
            stage_run = await run_queries.open_stage_run(session, run.submission_id, run.number)
            if stage_run is None or stage_run.waits_for == why:
                return
            stage_run.waits_for = why
            await lifecycle.append_event(
                session,
                run.submission_id,
                EventKind.LOG,
                f"Waiting for room: {why}",
                at=self._clock.now(),
                stage=stage_run.stage,
            )

        await self._database.write_unit(note)

    async def end_waiting(self, run: PipelineRun) -> None:
        """Record that the open stage waits no longer."""

        async def end(session: AsyncSession) -> None:
            stage_run = await run_queries.open_stage_run(session, run.submission_id, run.number)
            if stage_run is not None:
                stage_run.waits_for = None

        await self._database.write_unit(end)

    async def fail_stage(self, run: PipelineRun, stage: Stage, error: SubmissionFailure) -> Outcome:
        """Fail the submission in this stage and withdraw its deployment, unless it was cancelled meanwhile."""

        async def fail(session: AsyncSession) -> None:
            await self._require_wanted(session, run)
            await self._close(session, run, stage, Outcome.FAILED)
            await self._fail(session, run, as_failure(error, stage))

        try:
            await self._database.write_unit(fail)
        except (IllegalTransition, RunEnded):
            return await self.cancel_stage(run, stage)
        await self._announce(run.submission_id)
        return Outcome.FAILED

    async def fail_run(self, run: PipelineRun, error: SubmissionFailure) -> bool:
        """Fail the submission outside a stage and withdraw its deployment. Return False if it had ended already."""

        async def fail(session: AsyncSession) -> None:
            await self._require_wanted(session, run)
            stage_run = await run_queries.open_stage_run(session, run.submission_id, run.number)
            stage = stage_run.stage if stage_run else None
            if stage is not None:
                await self._close(session, run, stage, Outcome.FAILED)
            await self._fail(session, run, as_failure(error, stage))

        try:
            await self._database.write_unit(fail)
        except (IllegalTransition, RunEnded):
            return False
        await self._announce(run.submission_id)
        return True

    async def cancel_stage(self, run: PipelineRun, stage: Stage) -> Outcome:
        await self._database.write_unit(
            lambda session: self._close(session, run, stage, Outcome.CANCELLED)
        )
        return Outcome.CANCELLED

    async def wish(self, run: PipelineRun, deployment: Deployment) -> Deployment:
        """Wish for a model server and return the deployment with the engine that it was given; RunEnded when the run is no longer wanted."""

        async def wish(session: AsyncSession) -> Deployment:
            await self._require_wanted(session, run)
            return await self._deployments.wish_within(session, deployment)

        given = await self._database.write_unit(wish)
        self._deployments.note_given(given)
        return given

    async def replace_artifact(self, run: PipelineRun, facts: dict[str, Any]) -> str:
        """Record another artifact in the middle of a stage, and withdraw the deployment of the one before. Return its key."""

        async def replace(session: AsyncSession) -> str:
            await self._require_wanted(session, run)
            await _note_facts(session, run, facts)
            rollout = await _rollout(session, run)
            key = rollout.key if rollout else run.submission_id
            await self._deployments.withdraw(session, key)
            return key

        return await self._database.write_unit(replace)

    async def withdraw(self, run: PipelineRun) -> str | None:
        """Withdraw the deployment of a run that has ended and return its key. Return None if it is served, or runs again."""

        async def withdraw(session: AsyncSession) -> str | None:
            row = await queries.by_id_locked(session, run.submission_id)
            rollout = await _rollout(session, run)
            if rollout is not None:
                has_ended = not rollout.phase.is_in_progress
            else:
                has_ended = (
                    row is not None and row.run == run.number and row.status in lifecycle.ENDED
                )
            if not has_ended:
                return None
            key = rollout.key if rollout else run.submission_id
            await self._deployments.withdraw(session, key)
            return key

        return await self._database.write_unit(withdraw)

    async def withdraw_ended(self) -> list[str]:
        """Withdraw the deployments of submissions, and of runs beside them, that have ended; their keys."""
        wishes = await self._deployments.list_wishes()
        wished = [row.submission_id for row in wishes]
        async with self._database.read() as session:
            ended = [
                PipelineRun(row.id, row.run)
                for row in await queries.by_ids(session, wished)
                if row.status in lifecycle.ENDED
            ]
        ended += [
            PipelineRun(row.owner, run_of(row.submission_id))
            for row in wishes
            if row.is_beside and not row.is_draining  # then its rollout's loop stops it
        ]
        withdrawn = [await self.withdraw(run) for run in ended]
        return [key for key in withdrawn if key is not None]

    async def fail_published(self, key: str, error: SubmissionFailure) -> None:
        """A published submission whose model server kept dying; nothing if it was moved on meanwhile. A version beside takes down its own rollout only."""
        submission_id = submission_of(key)
        if is_beside(key):

            async def end_beside(session: AsyncSession) -> None:
                await queries.by_id_locked(session, submission_id)
                rollout = await _rollout(session, PipelineRun(submission_id, run_of(key)))
                if rollout is not None and rollout.phase.is_in_progress:
                    failure = as_failure(error, None)
                    await self._rollouts.end(session, rollout, RolloutPhase.FAILED, failure)

            await self._database.write_unit(end_beside)
            return

        async def fail(session: AsyncSession) -> None:
            await lifecycle.transition(
                session,
                submission_id,
                Status.FAILED,
                at=self._clock.now(),
                sources=frozenset({Status.DEPLOYED, Status.INACTIVE}),
                failure=as_failure(error, None),
            )
            await self._deployments.withdraw(session, submission_id)
            await self._rollouts.cancel(session, submission_id)

        try:
            await self._database.write_unit(fail)
        except IllegalTransition:
            return
        self._changes.announce(submission_id, Status.FAILED)

    async def log(
        self, run: PipelineRun, stage: Stage, *lines: str, level: Level = Level.INFO
    ) -> None:
        """Log lines of a stage, in one transaction."""

        async def append(session: AsyncSession) -> None:
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

        await self._database.write_unit(append)

    async def save_report(self, run: PipelineRun, report: StressReport) -> None:
        async def save(session: AsyncSession) -> None:
            await session.merge(
                StressReportRow(submission_id=run.submission_id, run=run.number, report=report)
            )

        await self._database.write_unit(save)

    async def _require_wanted(self, session: AsyncSession, run: PipelineRun) -> None:
        """RunEnded unless the run is in progress; it stays so until the transaction ends."""
        row = await queries.by_id_locked(session, run.submission_id)
        if row is None or not await _is_wanted(session, row, run):
            raise RunEnded

    async def _announce(self, submission_id: str) -> None:
        """Tell this process's listeners the status that the submission has now."""
        async with self._database.read() as session:
            status = await queries.status_of(session, submission_id)
        if status is not None:
            self._changes.announce(submission_id, status)

    async def _publish(self, session: AsyncSession, run: PipelineRun) -> None:
        """Open the submission to users, or the version beside to new conversations."""
        rollout = await _rollout(session, run)
        if rollout is not None:
            await self._rollouts.shift(session, rollout)
            return
        await lifecycle.transition(
            session, run.submission_id, Status.DEPLOYED, at=self._clock.now()
        )

    async def _fail(self, session: AsyncSession, run: PipelineRun, failure: Failure) -> None:
        rollout = await _rollout(session, run)
        if rollout is not None:
            await self._rollouts.end(session, rollout, RolloutPhase.FAILED, failure)
            return
        await lifecycle.transition(
            session, run.submission_id, Status.FAILED, at=self._clock.now(), failure=failure
        )
        await self._deployments.withdraw(session, run.submission_id)

    async def _close(
        self, session: AsyncSession, run: PipelineRun, stage: Stage, outcome: Outcome
    ) -> None:
        stage_run = await run_queries.stage_run(session, *_key(run, stage))
        if stage_run is None or stage_run.outcome is not None:
            return
        stage_run.outcome, stage_run.ended_at = outcome, self._clock.now()
        stage_run.waits_for = None
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


def _begin(
    session: AsyncSession,
    stage_run: StageRunRow | None,
    run: PipelineRun,
    stage: Stage,
    at: datetime,
) -> None:
    if stage_run is not None:
        stage_run.attempts += 1
        return
    session.add(
        StageRunRow(
            submission_id=run.submission_id, run=run.number, stage=stage, attempts=1, started_at=at
        )
    )


async def _note_facts(session: AsyncSession, run: PipelineRun, facts: dict[str, Any]) -> None:
    """Record what a stage has found in the submission. The artifact of a run beside the version that serves is its rollout's until it takes over."""
    rollout = await _rollout(session, run)
    if rollout is not None and "artifact_key" in facts:
        rollout.made = MadeArtifact.model_validate(facts)
        await session.flush()
        facts = {name: facts[name] for name in facts.keys() - MadeArtifact.model_fields.keys()}
    if facts:
        await session.execute(
            update(SubmissionRow)
            .where(SubmissionRow.id == run.submission_id)
            .values(**facts)
            .execution_options(synchronize_session=False)
        )


def _own_facts(submission: Submission, rollout: RolloutRow) -> dict[str, Any]:
    """Return what differs in the version of a rollout from the one that the submission says it serves."""
    facts: dict[str, Any] = {"is_promoted": submission.is_promoted or rollout.promotes}
    if rollout.restores is not None:
        names = ("artifact_key", "merged_because", "is_promoted")
        facts = {name: getattr(rollout.restores, name) for name in names}
    elif rollout.made is not None:
        facts |= rollout.made.model_dump()
    return facts


async def _is_wanted(session: AsyncSession, row: SubmissionRow, run: PipelineRun) -> bool:
    if row.run != run.number:
        return False
    rollout = await _rollout(session, run)
    if rollout is not None:
        return rollout.phase is RolloutPhase.PREPARING
    return row.status.is_in_progress


async def _rollout(session: AsyncSession, run: PipelineRun) -> RolloutRow | None:
    """Read the run's rollout; None where the run is not beside a version that serves."""
    return await session.get(RolloutRow, (run.submission_id, run.number), populate_existing=True)


def _later(now: Status, of_stage: Status) -> Status:
    """Return the later of the two, so that a stage that is run late does not move the submission back."""
    return max(now, of_stage, key=PIPELINE_STATUSES.index)


def first_unfinished(
    outcomes: Mapping[Stage, Outcome | None], stages: Sequence[Stage] = tuple(Stage)
) -> Stage | None:
    """Return the first stage that is not done. A new stage that the run is past is left out if it may be skipped."""
    begun = [place for place, stage in enumerate(stages) if stage in outcomes]
    furthest = max(begun, default=-1)
    for place, stage in enumerate(stages):
        is_passed = place < furthest and stage not in outcomes
        if outcomes.get(stage) is Outcome.DONE or (is_passed and stage.spec.may_be_skipped):
            continue
        return stage
    return None
