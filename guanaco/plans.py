"""Plans say what some traffic needs: GPUs, replicas and money, by type of GPU. They are estimates, from data sheets."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from guanaco.forms import OneLine
from guanaco.recipes import Recipe
from guanaco.submissions import Quantization


class PlannedTraffic(BaseModel):
    """``context_tokens`` is the prompt of a message, with persona and earlier turns."""

    model_config = ConfigDict(frozen=True)

    messages_per_second: float = Field(
        default=10, allow_inf_nan=False, description="Over 0, at most 1,000,000."
    )
    context_tokens: int = Field(default=2_048, le=10**8)
    output_tokens: int = Field(default=128, le=10**8)
    prefix_hit_rate: float = Field(
        default=0.8,
        allow_inf_nan=False,
        description="Share of the prompt that the prefix cache has, when sessions stay with their replica.",
    )
    tokens_per_second: float = Field(
        default=20,
        allow_inf_nan=False,
        description="Least number of tokens a second for each session.",
    )


class PlanRequest(PlannedTraffic):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1,
        max_length=1_000,
        description="A repo of the Hub, or `llama-3-8b`, `qwen3-235b-a22b`, `qwen3-235b-a22b-fp8`.",
    )
    gpus: list[OneLine] = Field(
        default=[], max_length=16, description="The types to compare; all without any."
    )
    quantization: Quantization | None = None


class GpuMemory(BaseModel):
    """Bytes of one GPU; ``sessions`` of the whole replica."""

    weights: float
    activations: float
    overhead: float
    kv_cache: float
    session: float
    sessions: int


class ReplicaCapacity(BaseModel):
    """The most that one replica carries. ``batch`` sessions generate at once; ``first_token_s`` is a prefill's time alone."""

    batch: int
    messages_per_second: float
    tokens_per_second: float
    session_tokens_per_second: float
    first_token_s: float


class GpuPlan(BaseModel):
    """``uncached_gpus`` is how many it would take without the prefix cache; None if no number is enough."""

    recipe: Recipe
    memory_a_gpu: GpuMemory
    capacity_a_replica: ReplicaCapacity
    replicas: int
    gpus: int
    cost_per_month: float
    uncached_gpus: int | None


class GpuComparison(BaseModel):
    """``plan`` is None where GPUs of this type cannot carry the traffic at all."""

    gpu: str
    plan: GpuPlan | None


class PlanComparison(BaseModel):
    """``active_parameters`` are those that a token uses."""

    model: str
    parameters: int
    active_parameters: int
    is_mixture: Annotated[
        bool, Field(description="True if a token uses only a part of the weights.")
    ]
    weight_bytes: float
    traffic: PlannedTraffic
    plans: list[GpuComparison]
