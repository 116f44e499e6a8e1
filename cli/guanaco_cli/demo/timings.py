"""Measures how long each part of the demo's journey took."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.chat import Reply
from guanaco.feedback import Feedback
from guanaco.leaderboard import Leaderboard
from guanaco.submissions import Stage, StressReport, Submission
from guanaco_cli import words


@dataclass(frozen=True)
class DemoReply:
    """The reply to the demo's only message, and where it was sent."""

    conversation_id: str
    submission_id: str
    reply: Reply


@dataclass(frozen=True)
class Journey:
    """The result of each step of the demo, and the seconds from the submit until it was there."""

    submission: Submission
    report: StressReport
    first_reply: DemoReply
    feedback: list[Feedback]
    leaderboard: Leaderboard
    live_after_s: float
    replied_after_s: float
    feedback_after_s: float


@dataclass(frozen=True)
class DemoTimings:
    """The duration of each part. ``platform_share_s`` excludes the model server's start (stage deploy) and the stress window."""

    submission_id: str
    repo: str
    stages_s: dict[str, float]
    submit_to_live_s: float
    conversation_s: float
    rating_and_reading_s: float
    submit_to_feedback_s: float
    model_server_start_s: float
    stress_window_s: float
    platform_share_s: float
    reply_ttft_ms: float
    reply_total_ms: float


def timings_of(journey: Journey) -> DemoTimings:
    """Compute the duration of each part from the moments at which the results were there."""
    submission = journey.submission
    stages = {
        str(run.stage): run.duration_s or 0.0
        for run in submission.stages
        if run.run == submission.run
    }
    start_s, window_s = stages.get(Stage.DEPLOY, 0.0), journey.report.duration_s
    return DemoTimings(
        submission_id=submission.id,
        repo=submission.repo,
        stages_s=stages,
        submit_to_live_s=journey.live_after_s,
        conversation_s=journey.replied_after_s - journey.live_after_s,
        rating_and_reading_s=journey.feedback_after_s - journey.replied_after_s,
        submit_to_feedback_s=journey.feedback_after_s,
        model_server_start_s=start_s,
        stress_window_s=window_s,
        platform_share_s=journey.feedback_after_s - start_s - window_s,
        reply_ttft_ms=journey.first_reply.reply.timings.ttft_ms,
        reply_total_ms=journey.first_reply.reply.timings.total_ms,
    )


def rows_of(figures: DemoTimings) -> list[tuple[str, str]]:
    """Return the rows of the table that the demo prints and the README shows."""
    between_s = figures.submit_to_live_s - sum(figures.stages_s.values())
    spans = [
        *((f"stage {stage}", value) for stage, value in figures.stages_s.items()),
        ("between the stages", between_s),
        ("open a conversation, reply", figures.conversation_s),
        ("rate, read the feedback", figures.rating_and_reading_s),
        ("submit to first feedback", figures.submit_to_feedback_s),
        ("of which the model server's start", figures.model_server_start_s),
        ("of which the stress window", figures.stress_window_s),
        ("the platform's own share", figures.platform_share_s),
    ]
    return [(name, words.seconds(value) if value >= 0.05 else "< 0.1 s") for name, value in spans]
