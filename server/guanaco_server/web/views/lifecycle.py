"""A submission's life as its page shows it: the stages of its latest run, and what can be done with it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from guanaco.submissions import (
    Outcome,
    RolloutPhase,
    Stage,
    Status,
    Submission,
    SubmissionKind,
)
from guanaco_server.submissions.lifecycle import SERVED, SOURCES

NEWER_STAGE = "A stage of a newer version of Guanaco"


@dataclass(frozen=True)
class StageView:
    """``state`` is done, failed, cancelled, running or waiting; ``since`` is when it began, while it runs."""

    name: str
    sentence: str
    state: str
    attempts: int
    took_s: float | None
    since: datetime | None = None


@dataclass(frozen=True)
class SubmissionAction:
    """``question`` is None where nothing is lost and nobody needs to be asked. ``to`` is the status that it leads to."""

    name: str
    label: str
    to: Status
    source: Status | None
    question: str | None
    is_grave: bool = False

    def is_possible(self, submission: Submission) -> bool:
        status, rollout = submission.status, submission.rollout
        is_rolling = rollout is not None and rollout.phase.is_in_progress
        match self.name:
            case "rollback":
                return status in SERVED and rollout is not None and rollout.phase in MAY_ROLL_BACK
            case "canary":
                is_chat = submission.kind is SubmissionKind.CHAT
                return status is Status.DEPLOYED and is_chat and not is_rolling
            case "redeploy" if is_rolling:
                return False
        return status in SOURCES[self.to] and self.source in (None, status)


MAY_ROLL_BACK = (RolloutPhase.PREPARING, RolloutPhase.SHIFTING, RolloutPhase.DONE)
ACTIONS = (
    SubmissionAction(
        "cancel",
        "Cancel",
        Status.CANCELLED,
        None,
        "The running stage stops and cleans up. Redeploy starts again later.",
        is_grave=True,
    ),
    SubmissionAction("reactivate", "Reactivate", Status.DEPLOYED, Status.INACTIVE, None),
    SubmissionAction(
        "deactivate",
        "Deactivate",
        Status.INACTIVE,
        None,
        "It takes no new conversations; those that are open go on.",
    ),
    SubmissionAction(
        "redeploy",
        "Redeploy",
        Status.QUEUED,
        None,
        "All stages run again, at the same commit. The served version stays until the new one has taken its place.",
    ),
    SubmissionAction(
        "canary",
        "Canary",
        Status.QUEUED,
        None,
        "All stages run again, at the same commit. The new version then gets a share of new conversations, and takes over when the time is up. It is stopped if its replies fail more often, are slower, or are rated worse.",
    ),
    SubmissionAction(
        "rollback",
        "Roll back",
        Status.QUEUED,
        None,
        "If a redeploy is under way, it ends, and the version that was served stays. Otherwise the version before the last redeploy comes back.",
    ),
    SubmissionAction(
        "teardown",
        "Tear down",
        Status.TORN_DOWN,
        None,
        "Its model server is stopped and open conversations end. Its feedback stays readable.",
        is_grave=True,
    ),
)


def actions_of(submission: Submission) -> list[SubmissionAction]:
    """Return the actions that are possible now."""
    return [action for action in ACTIONS if action.is_possible(submission)]


def find_action(name: str) -> SubmissionAction | None:
    return next((action for action in ACTIONS if action.name == name), None)


def timeline(submission: Submission, now: datetime) -> Sequence[StageView]:
    """Return all stages in their order, those of the latest run with their times."""
    runs = {stage.stage: stage for stage in submission.stages if stage.run == submission.run}
    views = []
    newer = [stage for stage in runs if stage.is_unknown]
    for stage in (*Stage, *newer):
        sentence = NEWER_STAGE if stage.is_unknown else stage.spec.sentence
        run = runs.get(stage)
        if run is None:
            views.append(StageView(stage.value, sentence, "waiting", 0, None))
            continue
        is_running = run.outcome is None and submission.is_in_progress
        state = "running" if is_running else (run.outcome or Outcome.CANCELLED).value
        took_s = run.duration_s
        if is_running:
            took_s = max(0.0, (now - run.started_at).total_seconds())
        since = run.started_at if is_running else None
        views.append(StageView(stage.value, sentence, state, run.attempts, took_s, since))
    return views
