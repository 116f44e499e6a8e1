"""Computes how many replicas some traffic needs, and what they cost a month.

A message costs a replica its prefill, and its share of the decode steps that it takes part in:

    seconds a message   prefill((1 - hit rate) · context) + output · step(batch) / batch
    tokens a second     of one session: output / (batch · seconds a message)
    messages a second   TARGET_LOAD / seconds a message
    replicas            messages a second that come / those of one replica, rounded up

``batch`` is the most sessions that generate at once so that each still gets its tokens a second. With sticky
sessions a conversation's next message finds its earlier turns in its replica's prefix cache: that is the hit rate.
Without affinity, each replica sees only a share of the turns, and the prompt is computed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from guanaco.errors import InvalidInput
from guanaco.recipes import Recipe
from guanaco_server.recipes.hardware import Gpu
from guanaco_server.recipes.memory import MemoryPlan, Model, Serving, plan_memory, stored_bytes
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.recipes.recipe import NO_OVERRIDE, Needs, as_recipe, servings
from guanaco_server.recipes.roofline import decode_step_s, prefill_s

TARGET_LOAD = 0.7  # of a replica's most; the rest is for traffic that comes in waves


@dataclass(frozen=True)
class ExpectedTraffic:
    """``context_tokens`` is the prompt of a message, with persona and earlier turns."""

    messages_per_second: float
    context_tokens: int
    output_tokens: int
    prefix_hit_rate: float
    tokens_per_second: float

    @property
    def needs(self) -> Needs:
        return Needs(self.context_tokens + self.output_tokens)


@dataclass(frozen=True)
class Capacity:
    """The most that one replica carries. ``batch`` sessions generate at once; ``first_token_s`` is a prefill's time alone."""

    batch: int
    messages_per_second: float
    tokens_per_second: float
    session_tokens_per_second: float
    first_token_s: float


@dataclass(frozen=True)
class TrafficPlan:
    """The plan for one type of GPU. ``uncached_gpus`` is how many it would take without the prefix cache; None if no number is enough."""

    gpu: Gpu
    recipe: Recipe
    memory: MemoryPlan
    capacity: Capacity
    replicas: int
    cost_per_month: float
    uncached_gpus: int | None

    @property
    def gpus(self) -> int:
        return self.replicas * self.recipe.gpu_count


def check_traffic(model: Model, traffic: ExpectedTraffic) -> None:
    """InvalidInput for what no model could be asked."""
    if not 0 < traffic.messages_per_second <= 1e6 or not 0 <= traffic.tokens_per_second <= 1e4:
        raise InvalidInput(
            "Messages a second must be over 0 and at most 1,000,000, tokens a second from 0 to 10,000."
        )
    if not 0 <= traffic.prefix_hit_rate < 1:
        raise InvalidInput("The prefix hit rate must be at least 0 and under 1.")
    if traffic.context_tokens < 1 or traffic.output_tokens < 1:
        raise InvalidInput("`context_tokens` and `output_tokens` must be at least 1 each.")
    tokens = traffic.context_tokens + traffic.output_tokens
    if tokens > model.shape.max_positions:
        raise InvalidInput(
            f"`context_tokens` and `output_tokens` make {tokens:,} tokens, and {model.name} has {model.shape.max_positions:,} positions.",
            hint=f"With {traffic.output_tokens:,} `output_tokens`, `context_tokens` may be at most {max(0, model.shape.max_positions - traffic.output_tokens):,}.",
        )


def plan_traffic(
    model: Model, traffic: ExpectedTraffic, gpu: Gpu, prices: PriceTable, max_gpus: int = 8
) -> TrafficPlan | None:
    """Return the fewest GPUs of this type that carry the traffic; None where no split holds it, or none is fast enough."""
    plans = [
        plan
        for serving in servings(model, gpu, traffic.needs, max_gpus)
        if (plan := _plan(model, traffic, gpu, serving, prices)) is not None
    ]
    best = min(plans, key=lambda plan: (plan.gpus, plan.recipe.gpu_count), default=None)
    if best is None:
        return None
    uncached = replace(traffic, prefix_hit_rate=0.0)
    counts = (
        plan.gpus
        for serving in servings(model, gpu, traffic.needs, max_gpus)
        if (plan := _plan(model, uncached, gpu, serving, prices)) is not None
    )
    return replace(best, uncached_gpus=min(counts, default=None))


def capacity_of(
    model: Model, traffic: ExpectedTraffic, gpu: Gpu, serving: Serving
) -> Capacity | None:
    """Return the capacity of one replica; None if even a single session is too slow or does not fit."""
    fit = min(plan_memory(model, gpu, serving).sessions, serving.max_num_seqs)
    batch = _largest_batch(model, traffic, gpu, serving, fit)
    if batch == 0:
        return None
    seconds = _seconds_a_message(model, traffic, gpu, serving, batch)
    return Capacity(
        batch=batch,
        messages_per_second=1 / seconds,
        tokens_per_second=traffic.output_tokens / seconds,
        session_tokens_per_second=traffic.output_tokens / (batch * seconds),
        first_token_s=_prefill_s(model, traffic, gpu, serving),
    )


def _plan(
    model: Model, traffic: ExpectedTraffic, gpu: Gpu, serving: Serving, prices: PriceTable
) -> TrafficPlan | None:
    capacity = capacity_of(model, traffic, gpu, serving)
    if capacity is None:
        return None
    memory = plan_memory(model, gpu, serving)
    usable = TARGET_LOAD * capacity.messages_per_second
    replicas = math.ceil(traffic.messages_per_second / usable)
    recipe = as_recipe(
        gpu, serving, model.quantization, NO_OVERRIDE, memory.sessions, stored_bytes(model)
    )
    cost = prices.per_month(gpu.name, replicas * recipe.gpu_count)
    return TrafficPlan(gpu, recipe, memory, capacity, replicas, cost, None)


def _largest_batch(
    model: Model, traffic: ExpectedTraffic, gpu: Gpu, serving: Serving, fit: int
) -> int:
    """Find the largest batch that is fast enough by halving, because a session's speed only falls with the batch; 0 if none is."""
    low, high = 0, fit
    while low < high:
        middle = (low + high + 1) // 2
        seconds = _seconds_a_message(model, traffic, gpu, serving, middle)
        if traffic.output_tokens / (middle * seconds) >= traffic.tokens_per_second:
            low = middle
        else:
            high = middle - 1
    return low


def _seconds_a_message(
    model: Model, traffic: ExpectedTraffic, gpu: Gpu, serving: Serving, batch: int
) -> float:
    context = traffic.context_tokens + traffic.output_tokens // 2
    step = decode_step_s(model, gpu, serving, batch, context)
    return _prefill_s(model, traffic, gpu, serving) + traffic.output_tokens * step / batch


def _prefill_s(model: Model, traffic: ExpectedTraffic, gpu: Gpu, serving: Serving) -> float:
    new = (1 - traffic.prefix_hit_rate) * traffic.context_tokens
    return prefill_s(model, gpu, serving, new, traffic.context_tokens)
