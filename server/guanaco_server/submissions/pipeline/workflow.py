"""The durable workflow: each stage is a step whose outcome DBOS keeps, so that a kill costs at most the stage it hit.

What DBOS keeps is the submission's id, the run and the outcomes, as JSON. What must be exact is kept by the
journal in our own tables; a submission that is queued there is enqueued here at the next look, however
the process died between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID
from sqlalchemy.exc import DBAPIError

from guanaco.submissions import Outcome, Stage, Status
from guanaco_server.runtime.background import Background
from guanaco_server.submissions.events import StatusChanges
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords
from guanaco_server.submissions.pipeline.runner import StageRunner

QUEUE = "submissions"
WORKFLOW_VERSION = (
    "1"  # pinned: code changes must not orphan what is in flight; raise it when steps change
)
QUEUE_POLL_S = 0.2
SWEEP_S = 1.0  # how long a submission that another process took may wait to be seen
MAX_RECOVERIES = 1_000  # a submission outlives any number of restarts

logger = logging.getLogger(__name__)


class Pipeline:
    """One per process: DBOS keeps its registry in a global of its own."""

    def __init__(
        self,
        runner: StageRunner,
        records: RunRecords,
        changes: StatusChanges,
        *,
        database_url: str,
        executor_id: str,
        concurrency: int,
    ) -> None:
        self._runner = runner
        self._records = records
        self._concurrency = concurrency
        self._woken = asyncio.Event()
        self._sweeper = Background("pipeline sweeper")
        self._config: DBOSConfig = {
            "name": "guanaco",
            "system_database_url": database_url,
            "application_version": WORKFLOW_VERSION,
            "executor_id": executor_id,
            "serializer": DBOSPortableJSONSerializer(),  # it would pickle otherwise
            "log_level": "ERROR",
        }
        changes.subscribe(self._note_change)

    async def start(self) -> None:
        """Resume what this executor left unfinished, and take what is queued."""
        DBOS(config=self._config)

        @DBOS.workflow(name="submission_pipeline", max_recovery_attempts=MAX_RECOVERIES)
        async def submission_pipeline(submission_id: str, number: int) -> str:
            return await self._run(PipelineRun(submission_id, number))

        self._workflow = submission_pipeline
        DBOS.launch()
        await DBOS.register_queue_async(
            QUEUE, worker_concurrency=self._concurrency, polling_interval_sec=QUEUE_POLL_S
        )
        self._sweeper.start(self._sweep())

    async def take_over(self, executor_id: str) -> int:
        """Resume what another executor, which is dead, left unfinished; how many submissions that were."""
        return await resume_workflows_of(executor_id, QUEUE)

    async def stop(self) -> None:
        """Stages under way are left as they are; the next start resumes them."""
        await self._sweeper.stop()
        await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
        # DBOS has made its own executor the loop's, and shut it down: whoever closes after us needs one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    async def _run(self, run: PipelineRun) -> str:
        for stage in Stage:
            outcome = await DBOS.run_step_async({"name": stage.value}, self._runner.run, run, stage)
            if outcome != Outcome.DONE:
                await DBOS.run_step_async({"name": "clean_up"}, self._runner.clean_up, run, outcome)
                return str(outcome)
        return Outcome.DONE.value

    def _note_change(self, _submission_id: str, status: Status) -> None:
        if status is Status.QUEUED:
            self._woken.set()

    async def _sweep(self) -> None:
        """Enqueue whatever is queued. The workflow's id makes a second time harmless."""
        while True:
            try:
                for run in await self._records.list_queued():
                    with SetWorkflowID(f"{run.submission_id}:{run.number}"):
                        await DBOS.enqueue_workflow_async(
                            QUEUE, self._workflow, run.submission_id, run.number
                        )
            except DBAPIError as error:
                logger.warning("looking for queued submissions failed, trying again: %s", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), SWEEP_S)
            self._woken.clear()


async def resume_workflows_of(executor_id: str, queue: str) -> int:
    """Put an executor's unfinished workflows back into the queue, each at the step it was in; how many there were."""
    return await asyncio.to_thread(_resume, executor_id, queue)


def _resume(executor_id: str, queue: str) -> int:
    left = DBOS.list_workflows(
        executor_id=executor_id, status="PENDING", load_input=False, load_output=False
    )
    if left:
        DBOS.resume_workflows([workflow.workflow_id for workflow in left], queue_name=queue)
    return len(left)
