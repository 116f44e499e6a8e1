"""How submissions compare."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from guanaco.submissions import Status


class SubmissionMetrics(BaseModel):
    """One vote a user: a user's latest rating of the submission counts."""

    submission_id: str
    thumbs_up: int
    thumbs_down: int
    feedback_count: int = Field(description="Every rating, also a user's earlier ones.")
    thumbs_up_ratio: float | None = Field(description="None without a rating.")
    interval_low: float | None = Field(description="Wilson score interval, 95 %.")
    interval_high: float | None
    conversation_count: int
    mean_conversation_length: float | None = Field(
        description="Messages not deleted, both sides, of rated conversations."
    )


class LeaderboardRow(SubmissionMetrics):
    rank: int | None = Field(description="By interval_low; None without a rating.")
    developer: str
    name: str
    repo: str
    status: Status
    created_at: datetime


class Leaderboard(BaseModel):
    at: datetime
    rows: list[LeaderboardRow]
