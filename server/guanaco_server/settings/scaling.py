"""Settings of replicas, sleep and room (docs/scaling.md)."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ScalingSettings(BaseModel):
    """Replicas and sleep"""

    min_replicas: int = Field(
        default=1,
        ge=1,
        description="Replicas of each published submission that is awake; the first serves before the others are started.",
    )
    max_replicas: int = Field(
        default=1,
        ge=1,
        description="Most replicas of a submission; min_replicas where that is more.",
    )
    scale_interval_s: float = Field(
        default=5, gt=0, description="Seconds between two looks at the model servers' load."
    )
    feedback_target: int = Field(
        default=0,
        ge=0,
        description="Ratings that are enough for a submission: with them, and idle, its model server sleeps. 0 lets none sleep.",
    )
    sleep_idle_s: float = Field(
        default=900, gt=0, description="Seconds without a message after which it may sleep."
    )
    wake_wait_s: float = Field(
        default=120,
        ge=0,
        description="Longest a message waits for a sleeping model server; less where its last start was quicker.",
    )
    max_gpus: int = Field(
        default=0, ge=0, description="GPUs for all model servers together; 0 is no limit."
    )
    max_model_servers: int = Field(
        default=0, ge=0, description="Model servers at once, replicas counted; 0 is no limit."
    )
    preempt_quiet_s: float = Field(
        default=300,
        ge=0,
        description="Seconds without a message after which a model server may have to make room for a new submission.",
    )
