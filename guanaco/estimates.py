"""Estimates, as the leaderboard and the results of experiments report them."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Estimate(BaseModel):
    """A value with its 95 % interval. An end is None where there is too little data to say."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = Field(default=0, description="Observations; 0 in answers of older servers.")
