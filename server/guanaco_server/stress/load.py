"""Sends an open-loop load: requests start at their due times, whether or not earlier ones have ended.

A closed loop (the next request after the last answer) would hide a slow server, because it sends less as the server
slows down: coordinated omission. Latencies here count from the due time, not from the sending. Requests come as those
of users who do not know of each other do, a Poisson process; its gaps are the same for every submission.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from guanaco.errors import Overloaded
from guanaco_server.deployments.model_servers.model_server import (
    Generation,
    ModelServer,
    ModelServerFault,
)

REQUEST_TIMEOUT_S = 30.0  # a request that takes longer counts as failed


@dataclass(frozen=True)
class Load:
    rate: float
    requests: int


@dataclass(frozen=True)
class RequestResult:
    """One request, due ``due_s`` after the load began. Milliseconds from then; ``tpot_ms`` needs two streamed tokens."""

    error: str | None = None
    output_tokens: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    due_s: float = 0.0


Measure = Callable[[str, float], Awaitable[RequestResult]]
Results = Sequence[RequestResult]


async def run_load(
    measure: Measure,
    prompts: Sequence[str],
    load: Load,
    is_decided: Callable[[Results], bool] = lambda _: False,
) -> list[RequestResult]:
    """Send the load and return the results in the order in which they were due. ``measure`` gets a prompt and its due time.

    Once ``is_decided`` by the results so far, nothing more is sent, and what is under way is given up.
    """
    results: list[RequestResult] = []
    tasks: list[asyncio.Task[None]] = []
    decided = asyncio.Event()
    started = time.perf_counter()

    async def request(prompt: str, due_s: float) -> None:
        result = await _measured(measure, prompt, started + due_s)
        results.append(replace(result, due_s=due_s))
        if is_decided(results):
            decided.set()

    async def all_requests() -> None:
        pairs = zip(itertools.cycle(prompts), arrivals(load), strict=False)
        async with asyncio.TaskGroup() as group:
            for prompt, due_s in pairs:
                await asyncio.sleep(max(0.0, started + due_s - time.perf_counter()))
                tasks.append(group.create_task(request(prompt, due_s)))

    sending, waiting = asyncio.create_task(all_requests()), asyncio.create_task(decided.wait())
    try:
        await asyncio.wait((sending, waiting), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            await sending
    finally:
        for task in (sending, waiting):
            task.cancel()
        await asyncio.gather(sending, waiting, return_exceptions=True)
    return sorted(results, key=lambda result: result.due_s)


def arrivals(load: Load) -> Iterator[float]:
    """Yield when each request is due, in seconds from the load's begin: a Poisson process that always draws the same gaps."""
    draws = random.Random(0)  # noqa: S311 - no secret
    due_s = 0.0
    for _ in range(load.requests):
        yield due_s
        due_s += draws.expovariate(load.rate)


async def run_in_turn(measure: Measure, prompts: Sequence[str]) -> list[RequestResult]:
    """Send one request after the other."""
    return [await _measured(measure, prompt, time.perf_counter()) for prompt in prompts]


async def _measured(measure: Measure, prompt: str, due: float) -> RequestResult:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await measure(prompt, due)
    except TimeoutError:
        return RequestResult(error=f"no whole answer within {REQUEST_TIMEOUT_S:g} s")
    except (ModelServerFault, Overloaded) as fault:
        return RequestResult(error=str(fault))


async def measure_reply(
    server: ModelServer, endpoint: str, generation: Generation, due: float
) -> RequestResult:
    """Measure one reply as its user waits for it: where it is the best of several, nothing is streamed."""
    first: float | None = None
    tokens = 0
    async for chunk in server.generate(endpoint, generation):
        if first is None:
            first = time.perf_counter()
        tokens = chunk.completion_tokens or tokens
    last = time.perf_counter()
    if first is None:
        raise ModelServerFault("the stream ended without a single chunk")
    whole = RequestResult(output_tokens=tokens, e2e_ms=(last - due) * 1000)
    if generation.candidate_count > 1:
        return whole
    return replace(
        whole,
        ttft_ms=(first - due) * 1000,
        tpot_ms=(last - first) * 1000 / (tokens - 1) if tokens > 1 else None,
    )


async def measure_scores(
    server: ModelServer,
    endpoint: str,
    model: str,
    texts: Sequence[str],
    cache_salt: str,
    due: float,
) -> RequestResult:
    """Measure one request in which a reward model scores texts."""
    await server.classify(endpoint, model, texts, cache_salt)
    return RequestResult(e2e_ms=(time.perf_counter() - due) * 1000)
