"""Runs one stage: recorded, tried again where that can help, stopped when the submission is cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from guanaco.errors import StageFault, SubmissionFailure
from guanaco.submissions import Level, Outcome, Stage
from guanaco_server.http.errors import internal_fault
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import scope
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.stages import STAGES, Facts, StageParts
from guanaco_server.submissions.tables import is_understood

RETRY_DELAYS_S = (
    1.0,
    4.0,
)  # a blip of the Hub passes in seconds; a longer outage is the developer's to retry
WATCH_S = 0.3
DATABASE_RETRY_S = 2.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StageRunner:
    def __init__(self, parts: StageParts, metrics: Metrics | None = None) -> None:
        self._parts = parts
        self._metrics = metrics or Metrics()
        self._records = parts.records

    async def run(self, run: PipelineRun, stage: Stage) -> Outcome:
        """The stage's outcome, which is in the database when this returns. Running an ended stage again does nothing."""
        with scope(submission_id=run.submission_id, stage=stage.value):
            known = await _insist(lambda: self._records.begin_stage(run, stage))
            if known is not None:
                return known
            started = time.perf_counter()
            outcome = await self._run_begun(run, stage)
            self._metrics.note_stage(stage, outcome, time.perf_counter() - started)
            logger.info("stage %s of %s: %s", stage, run.submission_id, outcome)
            return outcome

    async def _run_begun(self, run: PipelineRun, stage: Stage) -> Outcome:
        try:
            facts = await self._run_watched(run, stage)
        except SubmissionFailure as error:
            failure = error
            return await _insist(lambda: self._records.fail_stage(run, stage, failure))
        if facts is None:
            return await _insist(lambda: self._records.cancel_stage(run, stage))
        done = facts
        await _insist(lambda: self._records.end_stage(run, stage, done))
        return Outcome.DONE

    async def clean_up(self, run: PipelineRun, outcome: Outcome) -> None:
        """After a failed or cancelled run: no model server stays behind. A later run's is left alone."""
        if await _insist(lambda: self._records.is_superseded(run)):
            return
        await _insist(lambda: self._parts.deployments.remove(run.submission_id))
        if outcome == Outcome.CANCELLED:
            await self._parts.artifacts.drop_begun(run.submission_id)

    async def _run_watched(self, run: PipelineRun, stage: Stage) -> Facts | None:
        """The stage's facts, or None when the submission was cancelled in the middle."""
        work = asyncio.create_task(self._run_with_retries(run, stage), name=f"{stage} {run}")
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=WATCH_S)
                if not work.done() and not await _insist(lambda: self._records.is_wanted(run)):
                    return None
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _run_with_retries(self, run: PipelineRun, stage: Stage) -> Facts:
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                return await self._run_once(run, stage)
            except SubmissionFailure as error:
                if delay_s is None or not error.is_retryable:
                    raise
                await self._records.log(
                    run,
                    stage,
                    f"{error.detail} Trying again in {delay_s:g} s.",
                    level=Level.WARNING,
                )
                await asyncio.sleep(delay_s)
        raise AssertionError("the last try returns or raises")

    async def _run_once(self, run: PipelineRun, stage: Stage) -> Facts:
        try:
            submission = await self._records.load(run)
            if not is_understood(submission):  # begun by a newer worker, and taken over from it
                raise StageFault(
                    "The worker runs an older version of Guanaco than the one that took the submission.",
                    hint="Redeploy it when every worker runs the newer version.",
                )
            return await STAGES[stage](self._parts, run, submission)
        except SubmissionFailure:
            raise
        except Exception as error:
            fault = internal_fault(f"stage {stage} of {run.submission_id}", error)
            raise StageFault(fault.detail, hint=fault.hint) from error


async def _insist(write: Callable[[], Awaitable[T]]) -> T:
    """Through a hiccup of the database: what the pipeline has to say must be said."""
    while True:
        try:
            return await write()
        except DBAPIError as error:
            logger.warning("the database did not take it, trying again: %s", error)
            await asyncio.sleep(DATABASE_RETRY_S)
