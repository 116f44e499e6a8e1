"""Runs submissions as durable workflows: DBOS keeps which runs are worked on, by whom, and resumes them after a kill.

A workflow is a loop of equal steps. Each step runs the first stage of its run that is not done, which the run's own
records say (records.py); DBOS keeps how the step ended. So the list of stages may change while runs are in flight,
and a workflow that was lost is replaced by a new one that goes on (supervisor.py, docs/decisions/0016-stages-in-flight.md).

    submission queued ──▶ workflow 1 ──(waits for room, error, lost)──▶ workflow 2 … ──▶ deployed, failed or cancelled

A workflow that waits for room has ended: it holds no place of ``pipeline_concurrency``.

DBOS is launched while a run is in progress and has room, and rests otherwise (engine.py): our own records say which runs
there are, and DBOS's own loops would use more of a core than the rest of an idle platform.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from guanaco.submissions import Status
from guanaco_server.database.commits import CommitWatch
from guanaco_server.runtime.background import Background
from guanaco_server.submissions.pipeline.engine import QUEUE, WORKFLOW_VERSION, WorkflowEngine
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords, UnfinishedRun
from guanaco_server.submissions.pipeline.runner import StageRunner, Step
from guanaco_server.submissions.pipeline.supervisor import (
    LIVE,
    RUNNING,
    Action,
    Decision,
    WorkerLiveness,
    WorkflowState,
    decide,
    workflow_id,
    workflow_number,
)
from guanaco_server.submissions.runs.events import StatusChanges

if TYPE_CHECKING:
    from dbos import WorkflowStatus

STEP = "stage"
LOOK_S = 1.0  # how long a submission that another process took may wait to be seen
SUPERVISE_S = 5.0
SUPERVISED_AT_ONCE = 100  # the others' turn comes at the next look
REST_S = 30.0  # between the end of the last run and DBOS's rest

logger = logging.getLogger(__name__)

ListWorkers = Callable[[], Awaitable[Collection[str]]]
WaitsFor = Callable[[PipelineRun], Awaitable[str | None]]


class Pipeline:
    """Runs workflows; there is one per process, because DBOS keeps its registry in a global.

    ``list_workers`` names the executors that live, or from whom a survivor takes over; ``waits_for`` says why a
    run has no room, or None.
    """

    def __init__(
        self,
        runner: StageRunner,
        records: RunRecords,
        changes: StatusChanges,
        list_workers: ListWorkers,
        waits_for: WaitsFor,
        commits: CommitWatch,
        *,
        database_url: str,
        executor_id: str,
        concurrency: int,
    ) -> None:
        self._runner = runner
        self._records = records
        self._list_workers = list_workers
        self._waits_for = waits_for
        self._executor_id = executor_id
        self._active: dict[str, asyncio.Task[Any]] = {}
        self._enqueued: set[PipelineRun] = set()
        self._supervised_at: dict[PipelineRun, float] = {}
        self._commits = commits
        self._has_unfinished = True
        self._busy_at = time.monotonic()
        self._loop = Background("pipeline supervisor")
        self._engine = WorkflowEngine(
            self._work, database_url=database_url, executor_id=executor_id, concurrency=concurrency
        )
        changes.subscribe(self._note_change)

    async def start(self) -> None:
        """Resume what this executor left unfinished, and take what is queued.

        On PostgreSQL DBOS is launched now, to make its tables; on SQLite once there is a run.
        """
        if not self._engine.is_on_sqlite:
            await self._engine.launch()
        self._loop.start(self._look_forever())

    async def take_over(self, executor_id: str) -> int:
        """Resume what another executor, which is dead, left unfinished; the number of submissions.

        DBOS resumes by itself what its own executor left. ``resume_workflows`` does not ask who runs a workflow now,
        so the caller makes sure that one survivor alone calls this, for an executor that was given up
        (workers/service.py). Should that one live after all, DBOS refuses to record its steps from then on.
        """
        if not await self._records.list_unfinished():
            return 0
        from dbos import DBOS

        self._busy_at = time.monotonic()
        await self._engine.launch()
        left = await DBOS.list_workflows_async(
            executor_id=executor_id, status=RUNNING, load_input=False, load_output=False
        )
        if left:
            ids = [workflow.workflow_id for workflow in left]
            await DBOS.resume_workflows_async(ids, queue_name=QUEUE)
        return len(left)

    async def stop(self) -> None:
        """Leave the stages under way as they are; the next start resumes them."""
        await self._loop.stop()
        active = list(self._active.values())
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)
        await self._engine.rest()

    async def _work(self, submission_id: str, number: int) -> str:
        return await self._run(PipelineRun(submission_id, number))

    async def _run(self, run: PipelineRun) -> str:
        from dbos import DBOS

        own_id, task = str(DBOS.workflow_id), asyncio.current_task()
        assert task is not None
        self._active[own_id] = task
        try:
            while True:
                ended = await DBOS.run_step_async({"name": STEP}, self._runner.run_next, run)
                if ended != Step.NEXT:
                    return str(ended)
        finally:
            if self._active.get(own_id) is task:
                del self._active[own_id]

    def _note_change(self, _submission_id: str, status: Status) -> None:
        if status is Status.QUEUED:
            self._commits.wake()

    async def _look_forever(self) -> None:
        supervised_at = time.monotonic()  # DBOS resumes first what this executor left
        while True:
            is_due = time.monotonic() - supervised_at >= SUPERVISE_S
            try:
                await self._look(is_due)
            except DBAPIError as error:
                self._commits.reset()
                logger.warning("Search for submissions to work on failed; retrying: %s", error)
            else:
                supervised_at = time.monotonic() if is_due else supervised_at
            rest_s = REST_S if is_due else SUPERVISE_S
            await self._commits.wait(LOOK_S, LOOK_S if self._has_unfinished else rest_s)

    async def _look(self, is_due: bool) -> None:
        """Enqueue what is new, go on with what has got room, and now and then supervise the rest."""
        unfinished = await self._records.list_unfinished()
        runs = {each.run for each in unfinished}
        self._has_unfinished = bool(runs)
        roomy = [each for each in unfinished if each.waits_for and await self._has_room(each)]
        new = [
            each.run
            for each in unfinished
            if each.status is Status.QUEUED and each.run not in self._enqueued
        ]
        await self._launch_or_rest(
            bool(new or roomy) or not all(each.waits_for for each in unfinished)
        )
        for run in new:
            await self._enqueue(run, 1)
        self._enqueued &= runs
        rest = [each for each in unfinished if not each.waits_for] if is_due else []
        self._supervised_at = {run: at for run, at in self._supervised_at.items() if run in runs}
        rest.sort(key=lambda each: self._supervised_at.get(each.run, 0.0))
        await self._supervise([*roomy, *rest[:SUPERVISED_AT_ONCE]], {each.run for each in roomy})
        if is_due:
            for submission_id in await self._records.withdraw_ended():
                logger.warning("%s had ended and was still served: withdrawn", submission_id)

    async def _launch_or_rest(self, is_busy: bool) -> None:
        now = time.monotonic()
        if is_busy or self._active:
            self._busy_at = now
            await self._engine.launch()
        elif now - self._busy_at >= REST_S:
            await self._engine.rest()

    async def _has_room(self, waiting: UnfinishedRun) -> bool:
        why = await self._waits_for(waiting.run)
        if why is not None and why != waiting.waits_for:
            await self._records.note_waiting(waiting.run, why)
        return why is None

    async def _supervise(
        self, unfinished: Sequence[UnfinishedRun], has_room: Collection[PipelineRun]
    ) -> None:
        if not unfinished:
            return
        from dbos import error as dbos_error

        liveness = await self._liveness()
        for run, workflows in (await self._workflows_of([each.run for each in unfinished])).items():
            self._supervised_at[run] = time.monotonic()
            try:
                await self._carry_out(run, decide(workflows, liveness, run in has_room), workflows)
            except (
                dbos_error.DBOSException
            ) as error:  # one run's trouble must not keep the others waiting
                logger.error("Supervising %s failed; trying again: %s", run.submission_id, error)

    async def _carry_out(
        self, run: PipelineRun, decision: Decision, workflows: Sequence[WorkflowState]
    ) -> None:
        if decision.action is Action.START:
            await self._start_again(run, workflows)
        elif decision.failure is not None:
            logger.error("%s: %s", run.submission_id, decision.failure.detail)
            await self._records.fail_run(run, decision.failure)

    async def _start_again(self, run: PipelineRun, workflows: Sequence[WorkflowState]) -> None:
        """Enqueue the run's next workflow first, so that it is never without one; then end what is left of the others."""
        from dbos import DBOS

        number = workflows[-1].number + 1 if workflows else 1
        await self._enqueue(run, number)
        logger.info("workflow %d goes on with %s", number, run.submission_id)
        lost = [workflow.id for workflow in workflows if workflow.status in LIVE]
        if lost:
            await DBOS.cancel_workflows_async(lost)

    async def _enqueue(self, run: PipelineRun, number: int) -> None:
        """Enqueue a run's workflow. Doing so again has no effect, because the workflow's id is the same."""
        from dbos import DBOS, SetWorkflowID

        with SetWorkflowID(workflow_id(run, number)):
            await DBOS.enqueue_workflow_async(
                QUEUE, self._engine.workflow, run.submission_id, run.number
            )
        self._enqueued.add(run)

    async def _liveness(self) -> WorkerLiveness:
        others = set(await self._list_workers()) - {self._executor_id}
        return WorkerLiveness(
            WORKFLOW_VERSION, self._executor_id, set(self._active), others, time.time() * 1000
        )

    async def _workflows_of(
        self, runs: Sequence[PipelineRun]
    ) -> dict[PipelineRun, list[WorkflowState]]:
        """List the workflows of each run, the oldest first."""
        from dbos import DBOS

        found = await DBOS.list_workflows_async(
            workflow_id_prefix=[workflow_id(run) for run in runs], load_input=False
        )
        return {run: workflow_states(run, found) for run in runs}


def workflow_states(run: PipelineRun, found: Sequence[WorkflowStatus]) -> list[WorkflowState]:
    """Select the workflows of this run, the oldest first."""
    own = [
        WorkflowState(
            each.workflow_id,
            number,
            each.status,
            each.executor_id,
            each.app_version,
            each.updated_at or 0,
            each.output,
        )
        for each in found
        if (number := workflow_number(run, each.workflow_id)) is not None
    ]
    return sorted(own, key=lambda workflow: workflow.number)
