"""Decides what becomes of a run in progress by the state of its newest workflow.

    none                                       start
    enqueued, or running in a living process   leave
    ended because it waits for room            start when there is room
    errored                                    start, at most MAX_ERRORS times; then fail
    of a process that is gone, or of a version
      that does not take it                    start
    cancelled, or recovered too often          fail, with a sentence

A start enqueues another workflow of the same run. It goes on at the first stage that is not done: which
that is, the records of the run say, so no workflow needs the history of the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from guanaco.errors import StageFault
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.runner import Step

MAX_ERRORS = 3
ADOPT_S = 60.0  # a worker of another version that lives and has room takes its own within seconds
BEGIN_S = 15.0  # between a workflow's start in the database and in the process that has taken it

ENQUEUED = ("ENQUEUED", "DELAYED")
RUNNING = "PENDING"
ERRORED = "ERROR"
LIVE = (*ENQUEUED, RUNNING)


@dataclass(frozen=True)
class WorkflowState:
    """One workflow of a run, as DBOS lists it; ``number`` counts a run's workflows from 1."""

    id: str
    number: int
    status: str
    executor_id: str | None
    version: str | None
    updated_at_ms: int
    output: object


class Action(StrEnum):
    LEAVE = "leave"
    START = "start"
    FAIL = "fail"


@dataclass(frozen=True)
class Decision:
    """``failure`` says why the run fails."""

    action: Action
    failure: StageFault | None = None


@dataclass(frozen=True)
class WorkerLiveness:
    """The workers that live: this process, with the workflows that it runs, and the others.

    A worker that is silent is still one of the others: a survivor takes over what it left.
    """

    version: str
    executor_id: str
    active: Collection[str]
    others: Collection[str]
    now_ms: float


LEAVE = Decision(Action.LEAVE)
START = Decision(Action.START)


def workflow_id(run: PipelineRun, number: int = 1) -> str:
    first = f"{run.submission_id}:{run.number}"
    return first if number == 1 else f"{first}:{number}"


def workflow_number(run: PipelineRun, found_id: str) -> int | None:
    """Return which workflow of the run this is, from 1; None for one of another run."""
    first = workflow_id(run)
    if found_id == first:
        return 1
    number = found_id.removeprefix(f"{first}:")
    return int(number) if number != found_id and number.isdecimal() else None


def decide(
    workflows: Sequence[WorkflowState], liveness: WorkerLiveness, has_room: bool
) -> Decision:
    """``workflows`` are all of one run, the oldest first. ``has_room`` is False while its stage waits."""
    if not workflows:
        return START
    newest = workflows[-1]
    if newest.status in LIVE:
        return LEAVE if _has_live_worker(newest, liveness) else START
    if newest.status == "SUCCESS":
        return START if has_room or newest.output != Step.WAITING else LEAVE
    if newest.status == ERRORED:
        errors = sum(workflow.status == ERRORED for workflow in workflows)
        return (
            START if errors < MAX_ERRORS else _fail(f"Its workflow ended in errors {errors} times.")
        )
    if newest.status == "CANCELLED":
        return _fail("Its workflow was cancelled in the workflow database.")
    return _fail("The platform ended too often while it worked on this submission.")


def _has_live_worker(workflow: WorkflowState, liveness: WorkerLiveness) -> bool:
    untouched_s = (liveness.now_ms - workflow.updated_at_ms) / 1000
    is_ours = workflow.version == liveness.version
    if workflow.status in ENQUEUED:
        return is_ours or bool(liveness.others and untouched_s < ADOPT_S)
    if workflow.executor_id == liveness.executor_id:
        return workflow.id in liveness.active or untouched_s < BEGIN_S
    if workflow.executor_id in liveness.others:
        return True
    return bool(liveness.others) and untouched_s < ADOPT_S


def _fail(why: str) -> Decision:
    failure = StageFault(
        f"The pipeline could not finish this submission. {why}",
        hint="`guanaco redeploy` starts again; the operator finds the reason in the log.",
    )
    return Decision(Action.FAIL, failure=failure)
