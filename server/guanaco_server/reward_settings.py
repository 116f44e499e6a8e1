"""The settings about reward models; a part of settings.py."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class RewardSettings(BaseSettings):
    default_reward_submission: str | None = Field(
        default=None,
        description="Id of the reward model that picks among candidates where a submission names none; log-probability otherwise.",
    )
    reward_timeout_s: float = Field(
        default=2.0,
        gt=0,
        description="Longest wait for a reward model's scores, before the reply is picked by log-probability; its stress check allows as much.",
    )
