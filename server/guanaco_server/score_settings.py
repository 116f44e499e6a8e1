"""The settings about ratings and their ranking; a part of settings.py."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class ScoreSettings(BaseSettings):
    ratings_per_minute: int = Field(
        default=30,
        ge=1,
        description="Ratings that one user may give within a minute; more are refused with 429.",
    )
