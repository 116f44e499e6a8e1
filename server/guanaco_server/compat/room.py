"""Builds the old client's wire protocol over the platform's services."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.chat.gateway.replies import PreviewService
from guanaco_server.compat.service import OldClientService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.feedback.service import FeedbackService
from guanaco_server.leaderboard.service import LeaderboardService
from guanaco_server.submissions.runs.events import EventFeed
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class CompatRoom:
    service: OldClientService


def build_compat(
    *,
    submissions: SubmissionService,
    events: EventFeed,
    previews: PreviewService,
    feedback: FeedbackService,
    leaderboard: LeaderboardService,
    competitions: CompetitionService,
) -> CompatRoom:
    return CompatRoom(
        OldClientService(submissions, events, previews, feedback, leaderboard, competitions)
    )
