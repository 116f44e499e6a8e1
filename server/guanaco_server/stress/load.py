"""Open-loop load: requests start at their due times whether or not earlier ones have ended.

A closed loop (the next request after the last answer) would hide a slow server, for it sends less as the
server slows down: coordinated omission. Latencies here count from the due time, not from the sending.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from guanaco_server.deployments.model_server import Generation, ModelServer, ModelServerFault


@dataclass(frozen=True)
class LoadProfile:
    rate: float
    duration_s: float
    request_timeout_s: float

    @property
    def request_count(self) -> int:
        return max(1, round(self.rate * self.duration_s))


@dataclass(frozen=True)
class Sample:
    """One request. Milliseconds from when it was due; ``tpot_ms`` needs two tokens or more."""

    error: str | None = None
    output_tokens: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


Measure = Callable[[str, float], Awaitable[Sample]]


async def run_load(measure: Measure, prompts: Sequence[str], profile: LoadProfile) -> list[Sample]:
    """All samples, in the order in which they were due. ``measure`` gets a prompt and when it was due."""
    started = time.perf_counter()

    async def request(number: int, prompt: str) -> Sample:
        due = started + number / profile.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        try:
            async with asyncio.timeout(profile.request_timeout_s):
                return await measure(prompt, due)
        except TimeoutError:
            return Sample(error=f"no whole answer within {profile.request_timeout_s:g} s")
        except ModelServerFault as fault:
            return Sample(error=str(fault))

    pairs = zip(range(profile.request_count), itertools.cycle(prompts), strict=False)
    return await asyncio.gather(*(request(number, prompt) for number, prompt in pairs))


async def measure_reply(
    server: ModelServer, endpoint: str, generation: Generation, due: float
) -> Sample:
    first: float | None = None
    tokens = 0
    async for chunk in server.generate(endpoint, generation):
        if first is None:
            first = time.perf_counter()
        tokens = chunk.completion_tokens or tokens
    last = time.perf_counter()
    if first is None:
        raise ModelServerFault("the stream ended without a single chunk")
    return Sample(
        output_tokens=tokens,
        ttft_ms=(first - due) * 1000,
        tpot_ms=(last - first) * 1000 / (tokens - 1) if tokens > 1 else None,
        e2e_ms=(last - due) * 1000,
    )


async def measure_scores(
    server: ModelServer, endpoint: str, model: str, texts: Sequence[str], due: float
) -> Sample:
    """Of texts that a reward model scores in one request."""
    await server.classify(endpoint, model, texts)
    return Sample(e2e_ms=(time.perf_counter() - due) * 1000)
