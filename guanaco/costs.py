"""Models of the costs of GPUs: hours and money, by submission and by developer."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class Spending(BaseModel):
    """``gpu_hours`` counts each GPU of each replica; ``cost`` is in the platform's currency, at the prices of their time."""

    gpu_hours: float
    cost: float


class SubmissionCost(Spending):
    submission_id: str
    developer: str
    since: datetime
    until: datetime
    currency: str
    gpus_now: int = Field(description="GPUs that it holds at this moment.")


class DeveloperCost(Spending):
    developer: str
    budget: float | None = Field(description="For a calendar month (UTC); None is no limit.")


class Costs(Spending):
    """All of the platform, dearest first."""

    since: datetime
    until: datetime
    currency: str
    developers: list[DeveloperCost]
    submissions: list[SubmissionCost]
