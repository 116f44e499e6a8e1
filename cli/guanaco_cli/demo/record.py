"""What happened on a journey, for the table and the figures."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.chat import Reply
from guanaco.feedback import Feedback
from guanaco.leaderboard import Leaderboard
from guanaco.submissions import StressReport, Submission


@dataclass(frozen=True)
class Talked:
    conversation_id: str
    submission_id: str
    reply: Reply


@dataclass(frozen=True)
class Journey:
    """What happened, and when, in seconds after the submit."""

    submission: Submission
    report: StressReport
    talked: Talked
    feedback: list[Feedback]
    leaderboard: Leaderboard
    live_after_s: float
    replied_after_s: float
    feedback_after_s: float
