"""Settings of replicas, sleep and room (docs/scaling.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, field_validator

from guanaco_server.runtime.weekly_hours import WeeklyHours, find_zone


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
        description="Most replicas of a submission; min_replicas or peak_min_replicas where those are more.",
    )
    spare_capacity: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="Share of the load that replicas have room for beyond it, for growth: 0.1 is 10 % more than is needed.",
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
    min_awake: int = Field(
        default=0,
        ge=0,
        description="Submissions that stay awake although they could sleep, those with the latest message first; with fewer awake, sleeping ones are started where there is free room.",
    )
    peak_hours: list[str] = Field(
        default=[],
        description="Hours with floors of their own, by the clock of peak_time_zone: Mon-Fri 17:00-23:30, Sat 20:00-02:00.",
    )
    peak_time_zone: str = Field(
        default="UTC", description="Their time zone, such as Europe/Berlin."
    )
    peak_min_replicas: int = Field(
        default=1, ge=1, description="min_replicas within peak hours, where that is more."
    )
    peak_min_awake: int = Field(
        default=0, ge=0, description="min_awake within peak hours, where that is more."
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

    sleep_policy: Literal["least_useful", "worth"] = Field(
        default="least_useful",
        description="Choice of the submission that sleeps when max_gpus or max_model_servers are taken: `least_useful` stops the one that has its ratings or was used longest ago; `worth` also wakes those whose next ratings tell most about which submission is the best, for each second of a GPU. Set `worth` when no process of an earlier version runs any more.",
    )
    longest_sleep_s: float = Field(
        default=86_400,
        gt=0,
        description="Seconds after which `sleep_policy` `worth` gives a submission that sleeps a turn of some 20 ratings, whatever they are worth.",
    )

    @field_validator("peak_hours")
    @classmethod
    def _are_hours(cls, texts: list[str]) -> list[str]:
        for text in texts:
            WeeklyHours.parse(text)
        return texts

    @field_validator("peak_time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        find_zone(name)
        return name
