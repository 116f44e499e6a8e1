"""Which submission a new conversation goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from guanaco_server.submissions.service import ServingSubmission


@dataclass(frozen=True)
class LiveSubmission:
    """A published submission; ``endpoints`` are those of its replicas that are ready, empty while there is none."""

    serving: ServingSubmission
    endpoints: tuple[str, ...]
    feedback_count: int


class AssignmentPolicy(Protocol):
    def choose(self, candidates: Sequence[LiveSubmission]) -> LiveSubmission:
        """One of the candidates, of which there is at least one."""
        ...


class LeastFeedbackFirst:
    """The one with the least feedback; of several, the newest: so that a new model hears from people soon."""

    def choose(self, candidates: Sequence[LiveSubmission]) -> LiveSubmission:
        return min(
            candidates,
            key=lambda live: (live.feedback_count, -live.serving.created_at.timestamp()),
        )
