"""Runs a run's stages, one at a time: recorded, retried where that can help, stopped when the submission is cancelled.

The records of this run decide which stage comes next, not the position of a workflow. Whatever a stage or the
recording of it raises becomes a failed submission with a sentence, and its model server is no longer requested.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from guanaco.errors import (
    DatabaseUnavailable,
    GuanacoError,
    StageFault,
    StoreUnreachable,
    SubmissionFailure,
)
from guanaco.submissions import Level, Outcome, Stage
from guanaco_server.http.errors import internal_fault
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import scope
from guanaco_server.submissions.pipeline.records import (
    LAST_STAGE,
    NewerVersionRuns,
    PipelineRun,
    RunEnded,
    StageWaits,
)
from guanaco_server.submissions.pipeline.stages import FUNCTIONS, Facts, StageParts

RETRY_DELAYS_S = (
    1.0,
    4.0,
)  # a blip of the Hub passes in seconds; a longer outage is the developer's to retry
OUTAGE_DELAYS_S = (
    1.0,
    4.0,
    10.0,
    20.0,
    30.0,
)  # a store that restarts, or fails over, is away for half a minute
WATCH_S = 0.3
DATABASE_RETRY_S = 2.0
DATABASE_TRIES = 15  # 30 s, for an error that is no outage
OUTAGES = (  # the database is down, busy, or was restarted
    OperationalError,
    InterfaceError,
    NoConnectionLeft,
    DatabaseUnavailable,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Step(StrEnum):
    """The end of one step of a workflow. After ``NEXT`` comes another step; all others end the workflow."""

    NEXT = "next"
    WAITING = "waiting"  # for room; the supervisor goes on with the run when there is some
    LEFT = "left"  # to a newer version
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StageRunner:
    def __init__(self, parts: StageParts, metrics: Metrics) -> None:
        self._parts = parts
        self._metrics = metrics
        self._records = parts.records

    async def run_next(self, run: PipelineRun) -> Step:
        """Run the first stage that is not done. Raises nothing but cancellation and what stops the process."""
        with scope(submission_id=run.submission_id):
            try:
                return await self._run_next(run)
            except NewerVersionRuns:
                return Step.LEFT
            except BaseException as error:
                if _is_shutdown(error):
                    raise
                return await self._fail_run(run, error)

    async def run(self, run: PipelineRun, stage: Stage) -> Outcome | None:
        """Run a stage and return its outcome, which is then in the database; None while it waits. Running an ended stage again does nothing."""
        with scope(submission_id=run.submission_id, stage=stage.value):
            known = await _retry_on_database_error(lambda: self._records.begin_stage(run, stage))
            if known is not None:
                return known
            started = time.perf_counter()
            outcome = await self._run_begun(run, stage)
            if outcome is None:
                logger.info("stage %s of %s waits for room", stage, run.submission_id)
                return None
            self._metrics.note_stage(stage, outcome, time.perf_counter() - started)
            logger.info("stage %s of %s: %s", stage, run.submission_id, outcome)
            return outcome

    async def clean_up(self, run: PipelineRun, outcome: Outcome) -> None:
        """Stop the model server of a failed or cancelled run. A later run's is left alone.

        The withdrawn wish is what counts: the reconciler and the collector do what cannot be done now.
        """
        key = await _retry_on_database_error(lambda: self._records.withdraw(run))
        if key is None:
            return
        try:
            await self._parts.deployments.servers.stop_withdrawn(key)
            if outcome == Outcome.CANCELLED:
                await self._parts.artifacts.drop_begun(run.submission_id)
        except (GuanacoError, OSError, DBAPIError) as error:
            logger.warning("cleaning up after %s is left to others: %s", run.submission_id, error)

    async def _run_next(self, run: PipelineRun) -> Step:
        stage = await _retry_on_database_error(lambda: self._records.next_stage(run))
        outcome = stage if isinstance(stage, Outcome) else await self.run(run, stage)
        if outcome is None:
            return Step.WAITING
        if outcome is Outcome.DONE:
            return Step.NEXT if isinstance(stage, Stage) and stage is not LAST_STAGE else Step.DONE
        await self.clean_up(run, outcome)
        return Step(outcome.value)

    async def _fail_run(self, run: PipelineRun, error: BaseException) -> Step:
        """An error outside the stages, or one that recording a stage's end met."""
        fault = internal_fault(f"the pipeline of {run.submission_id}", error)
        failure = StageFault(fault.detail, hint=fault.hint)
        await _retry_on_database_error(lambda: self._records.fail_run(run, failure))
        await self.clean_up(run, Outcome.FAILED)
        return Step.FAILED

    async def _run_begun(self, run: PipelineRun, stage: Stage) -> Outcome | None:
        try:
            facts = await self._run_watched(run, stage)
        except StageWaits as waits:
            why = str(waits)
            await _retry_on_database_error(lambda: self._records.note_waiting(run, why))
            return None
        except RunEnded:
            facts = None
        except SubmissionFailure as error:
            failure = error
            return await _retry_on_database_error(
                lambda: self._records.fail_stage(run, stage, failure)
            )
        if facts is None:
            return await _retry_on_database_error(lambda: self._records.cancel_stage(run, stage))
        found = facts
        return await _retry_on_database_error(lambda: self._records.end_stage(run, stage, found))

    async def _run_watched(self, run: PipelineRun, stage: Stage) -> Facts | None:
        """Return the stage's facts, or None if the submission was cancelled meanwhile."""
        work = asyncio.create_task(self._run_with_retries(run, stage), name=f"{stage} {run}")
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=WATCH_S)
                if not work.done() and not await _retry_on_database_error(
                    lambda: self._records.is_wanted(run)
                ):
                    return None
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _run_with_retries(self, run: PipelineRun, stage: Stage) -> Facts:
        tries = itertools.count()
        while True:
            try:
                return await self._run_once(run, stage)
            except SubmissionFailure as error:
                delay_s = _delay_s(error, next(tries))
                if delay_s is None:
                    raise
                message = f"{error.detail} Trying again in {delay_s:g} s."
                await _retry_on_database_error(functools.partial(self._warn, run, stage, message))
                await asyncio.sleep(delay_s)

    async def _warn(self, run: PipelineRun, stage: Stage, text: str) -> None:
        await self._records.log(run, stage, text, level=Level.WARNING)

    async def _run_once(self, run: PipelineRun, stage: Stage) -> Facts:
        """Run the stage, from its beginning each time that the database was away; that is no failed try."""
        return await _retry_in_outage(lambda: self._run_guarded(run, stage))

    async def _run_guarded(self, run: PipelineRun, stage: Stage) -> Facts:
        try:
            submission = await self._records.load(run)
            return await FUNCTIONS[stage](self._parts, run, submission)
        except (SubmissionFailure, StageWaits, RunEnded):
            raise
        except BaseException as error:  # a library's panic is no Exception
            if _is_shutdown(error) or _is_outage(error):
                raise
            fault = internal_fault(f"stage {stage} of {run.submission_id}", error)
            raise StageFault(fault.detail, hint=fault.hint) from error


def _delay_s(error: SubmissionFailure, failed_tries: int) -> float | None:
    """Return how long to wait before the stage is tried again; None to give up."""
    delays = OUTAGE_DELAYS_S if isinstance(error, StoreUnreachable) else RETRY_DELAYS_S
    if not error.is_retryable or failed_tries >= len(delays):
        return None
    return delays[failed_tries]


def _is_shutdown(error: BaseException) -> bool:
    """Return whether the error ends this task or process, and is no fault of the stage."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


async def _retry_on_database_error(write: Callable[[], Awaitable[T]]) -> T:
    """Retry until an outage of the database is over; retry other database errors DATABASE_TRIES times."""
    for _ in range(DATABASE_TRIES - 1):
        try:
            return await _retry_in_outage(write)
        except DBAPIError as error:
            await _wait_to_retry(error)
    return await _retry_in_outage(write)


async def _retry_in_outage(work: Callable[[], Awaitable[T]]) -> T:
    """Retry until an outage of the database is over."""
    while True:
        try:
            return await work()
        except (SQLAlchemyError, DatabaseUnavailable) as error:
            if not _is_outage(error):
                raise
            await _wait_to_retry(error)


def _is_outage(error: BaseException) -> bool:
    is_broken = isinstance(error, DBAPIError) and error.connection_invalidated
    return isinstance(error, OUTAGES) or is_broken


async def _wait_to_retry(error: Exception) -> None:
    logger.warning("Database failed; retrying in %g s: %s", DATABASE_RETRY_S, error)
    await asyncio.sleep(DATABASE_RETRY_S)
