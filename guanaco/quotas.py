"""Models of quotas: the limits of a developer, and what they have used."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class QuotaUse(BaseModel):
    """``limit`` is None where there is no limit."""

    used: int
    limit: int | None = None

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.used)


class Quota(BaseModel):
    """One developer's limits, and what they have used of each. ``next_submission_at`` is set while the hour's submissions are used up."""

    account: str
    per_hour: QuotaUse
    live: QuotaUse
    in_progress: QuotaUse
    artifact_bytes: QuotaUse
    next_submission_at: datetime | None = None


class QuotaOverride(BaseModel):
    """The limits that an admin sets for one developer, in place of those set before. What is left out is the platform's own; 0 is no limit."""

    model_config = ConfigDict(extra="forbid")

    per_hour: int | None = Field(
        default=None, ge=0, le=2**53, description="Submissions and redeploys within an hour."
    )
    live: int | None = Field(
        default=None, ge=0, le=2**53, description="Submissions that are live, or on their way."
    )
    in_progress: int | None = Field(
        default=None, ge=0, le=2**53, description="Submissions in the queue and in the pipeline."
    )
    artifact_bytes: int | None = Field(
        default=None, ge=0, le=2**53, description="Bytes of weights of those submissions."
    )
