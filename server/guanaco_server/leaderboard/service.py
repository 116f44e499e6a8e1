"""Metrics of each submission, and their order: by the lower end of the thumbs-up ratio's interval.

The lower end, so that three thumbs of three do not beat ninety of a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from guanaco.leaderboard import Leaderboard, LeaderboardRow, SubmissionMetrics
from guanaco.submissions import Status, Submission
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import ConversationService
from guanaco_server.clock import Clock
from guanaco_server.database.database import Database
from guanaco_server.feedback.service import FeedbackService, Votes
from guanaco_server.intervals import wilson_interval
from guanaco_server.submissions.service import SubmissionService

SHOWN = frozenset({Status.DEPLOYED, Status.INACTIVE, Status.TORN_DOWN})
NO_VOTES = Votes(0, 0)


@dataclass(frozen=True)
class Figures:
    """What is counted, by submission."""

    votes: dict[str, Votes]
    conversations: dict[str, int]
    rated: dict[str, list[str]]
    lengths: dict[str, int]


class LeaderboardService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        conversations: ConversationService,
        feedback: FeedbackService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._conversations = conversations
        self._feedback = feedback

    async def metrics(self, account: Account, submission_id: str) -> SubmissionMetrics:
        await self._submissions.require_visible(account, submission_id)
        return _metrics(submission_id, await self._figures())

    async def leaderboard(self) -> Leaderboard:
        """Every submission that is or was published, rated ones first."""
        submissions = [s for s in await self._submissions.list_all() if s.status in SHOWN]
        figures = await self._figures()
        measured = [(submission, _metrics(submission.id, figures)) for submission in submissions]
        measured.sort(key=_order)
        rows = [
            _row(submission, metrics, place if metrics.thumbs_up_ratio is not None else None)
            for place, (submission, metrics) in enumerate(measured, start=1)
        ]
        return Leaderboard(at=self._clock.now(), rows=rows)

    async def _figures(self) -> Figures:
        async with self._database.read() as session:
            rated = await self._feedback.rated_conversations(session)
            return Figures(
                votes=await self._feedback.votes(session),
                conversations=await self._conversations.counts(session),
                rated=rated,
                lengths=await self._conversations.lengths(
                    session, list(chain.from_iterable(rated.values()))
                ),
            )


def _metrics(submission_id: str, figures: Figures) -> SubmissionMetrics:
    votes = figures.votes.get(submission_id, NO_VOTES)
    total = votes.up + votes.down
    low, high = wilson_interval(votes.up, total) if total else (None, None)
    rated = figures.rated.get(submission_id, [])
    return SubmissionMetrics(
        submission_id=submission_id,
        thumbs_up=votes.up,
        thumbs_down=votes.down,
        feedback_count=len(rated),
        thumbs_up_ratio=votes.up / total if total else None,
        interval_low=low,
        interval_high=high,
        conversation_count=figures.conversations.get(submission_id, 0),
        mean_conversation_length=(
            fmean(figures.lengths.get(conversation, 0) for conversation in rated) if rated else None
        ),
    )


def _order(measured: tuple[Submission, SubmissionMetrics]) -> tuple[float, float]:
    """Best first; of equals the newer first."""
    submission, metrics = measured
    low = -1.0 if metrics.interval_low is None else metrics.interval_low
    return -low, -submission.created_at.timestamp()


def _row(submission: Submission, metrics: SubmissionMetrics, rank: int | None) -> LeaderboardRow:
    return LeaderboardRow(
        **metrics.model_dump(),
        rank=rank,
        developer=submission.developer,
        name=submission.name,
        repo=submission.repo,
        status=submission.status,
        created_at=submission.created_at,
    )
