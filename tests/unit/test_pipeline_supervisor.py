"""Tests what becomes of a run, by the state of its workflows; and which of its stages comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guanaco.submissions import PIPELINE_STATUSES, Outcome, Stage, StageSpec, Status
from guanaco_server.submissions.lifecycle import SOURCES
from guanaco_server.submissions.pipeline.records import PipelineRun, first_unfinished
from guanaco_server.submissions.pipeline.runner import Step
from guanaco_server.submissions.pipeline.stages import FUNCTIONS
from guanaco_server.submissions.pipeline.supervisor import (
    MAX_ERRORS,
    Action,
    WorkerLiveness,
    WorkflowState,
    decide,
    workflow_id,
    workflow_number,
)

RUN = PipelineRun("acme-tiny_v1", 1)
NOW_MS = 10_000_000.0
ALONE = WorkerLiveness("2", "me", active=set(), others=set(), now_ms=NOW_MS)
AMONG_WORKERS = replace(ALONE, others={"other"})
OLD = WorkflowState(workflow_id(RUN), 1, "PENDING", "me", "2", updated_at_ms=0, output=None)
FRESH = replace(OLD, updated_at_ms=int(NOW_MS) - 1_000)
DONE = dict.fromkeys(Stage, Outcome.DONE)


@pytest.mark.parametrize(
    ("workflow", "liveness", "action"),
    [
        (replace(OLD, status="ENQUEUED"), ALONE, Action.LEAVE),
        (replace(OLD, status="ENQUEUED", version="1"), ALONE, Action.START),
        (replace(OLD, status="ENQUEUED", version="1"), AMONG_WORKERS, Action.START),
        (replace(FRESH, status="ENQUEUED", version="1"), AMONG_WORKERS, Action.LEAVE),
        (OLD, replace(ALONE, active={OLD.id}), Action.LEAVE),
        (OLD, ALONE, Action.START),
        (FRESH, ALONE, Action.LEAVE),
        (replace(OLD, executor_id="other"), AMONG_WORKERS, Action.LEAVE),
        (replace(OLD, executor_id="gone"), AMONG_WORKERS, Action.START),
        (replace(FRESH, executor_id="gone"), AMONG_WORKERS, Action.LEAVE),
        (replace(FRESH, executor_id="gone"), ALONE, Action.START),
        (replace(OLD, status="SUCCESS", output=Step.LEFT), ALONE, Action.START),
        (replace(OLD, status="CANCELLED"), ALONE, Action.FAIL),
        (replace(OLD, status="MAX_RECOVERY_ATTEMPTS_EXCEEDED"), ALONE, Action.FAIL),
    ],
)
def test_a_run_is_left_started_or_failed_by_its_workflow(
    workflow: WorkflowState, liveness: WorkerLiveness, action: Action
) -> None:
    assert decide([workflow], liveness, has_room=True).action is action


def test_a_run_without_a_workflow_is_started() -> None:
    assert decide([], ALONE, has_room=True).action is Action.START


def test_a_run_that_waits_is_started_when_there_is_room() -> None:
    waiting = replace(OLD, status="SUCCESS", output="waiting")
    assert decide([waiting], ALONE, has_room=False).action is Action.LEAVE
    assert decide([waiting], ALONE, has_room=True).action is Action.START


def test_a_run_fails_after_errors_and_says_how_many() -> None:
    errors = [replace(OLD, number=n, status="ERROR") for n in range(1, MAX_ERRORS + 1)]
    assert decide(errors[:-1], ALONE, has_room=True).action is Action.START
    failure = decide(errors, ALONE, has_room=True).failure
    assert failure is not None
    assert f"errors {MAX_ERRORS} times" in failure.detail


def test_only_the_newest_workflow_decides() -> None:
    lost = replace(OLD, status="CANCELLED")
    newer = replace(OLD, number=2, status="ENQUEUED")
    assert decide([lost, newer], ALONE, has_room=True).action is Action.LEAVE


def test_workflow_ids_are_numbered_within_their_run() -> None:
    for number in (1, 2, 13):
        assert workflow_number(RUN, workflow_id(RUN, number)) == number
    assert workflow_number(RUN, workflow_id(PipelineRun(RUN.submission_id, 12))) is None
    assert workflow_number(RUN, workflow_id(PipelineRun("acmextiny_v1", 1))) is None


def test_stages_run_in_their_order() -> None:
    outcomes: dict[Stage, Outcome | None] = {}
    for stage in Stage:
        assert first_unfinished(outcomes) is stage
        outcomes[stage] = None
        assert first_unfinished(outcomes) is stage, "it was interrupted"
        outcomes[stage] = Outcome.DONE
    assert first_unfinished(outcomes) is None


@pytest.mark.parametrize("may_be_skipped", [False, True])
def test_new_stage_already_passed_is_run_late_or_skipped(may_be_skipped: bool) -> None:
    new = Stage.read("scan")
    new.spec = StageSpec("scan", Status.CHECKING, "Scan the weights", may_be_skipped)
    stages = [Stage.RESOLVE, new, Stage.CHECK, Stage.SERIALIZE]
    outcomes = {Stage.RESOLVE: Outcome.DONE, Stage.CHECK: None}
    expected = Stage.CHECK if may_be_skipped else new
    assert first_unfinished(outcomes, stages) is expected
    assert first_unfinished({Stage.RESOLVE: Outcome.DONE}, stages) is new


def test_outcomes_of_a_later_versions_stage_are_ignored() -> None:
    outcomes = {Stage.RESOLVE: Outcome.DONE, Stage.read("scan"): None}
    assert first_unfinished(outcomes) is Stage.CHECK


def test_every_stage_has_a_function_and_a_sentence() -> None:
    assert list(FUNCTIONS) == list(Stage)
    assert all(stage.spec.sentence and stage.spec.name == stage for stage in Stage)


def test_statuses_of_the_stages_go_forwards_only() -> None:
    for place, status in enumerate(PIPELINE_STATUSES[1:], 1):
        assert SOURCES[status] == frozenset(PIPELINE_STATUSES[:place])
    assert SOURCES[Status.DEPLOYED] == {PIPELINE_STATUSES[-1], Status.INACTIVE}
