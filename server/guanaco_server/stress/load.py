"""Sends an open-loop load: requests start at their due times, whether or not earlier ones have ended.

A closed loop (the next request after the last answer) would hide a slow server, because it sends less as the server
slows down: coordinated omission. Latencies here count from the due time, not from the sending. The prompts are like
those of real conversations, in several lengths.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from guanaco.bots import BOTS
from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import BadPrompt, ContextTooLong, MessageTooLong, PromptFailed
from guanaco.prompts import Prompt
from guanaco.submissions import GenerationParams
from guanaco_server.deployments.model_server import Generation, ModelServer, ModelServerFault
from guanaco_server.prompts.service import PromptService

CHAT = (
    Turn(sender=Sender.USER, content="Hi! How was your day?"),
    Turn(sender=Sender.BOT, content="Wonderful. I walked along the sea and thought of you."),
    Turn(sender=Sender.USER, content="Tell me something that I do not know about you."),
    Turn(
        sender=Sender.BOT,
        content="I collect old maps, and I have been lost in every place on them.",
    ),
    Turn(sender=Sender.USER, content="Where shall we go first?"),
)
LENGTHS = (1, 3, 5)  # turns: a first message, and two points further on
PLAIN_BOT = Bot(name="Bot")


@dataclass(frozen=True)
class LoadProfile:
    rate: float
    duration_s: float
    request_timeout_s: float = 30  # a request that takes longer counts as failed

    @property
    def request_count(self) -> int:
        return max(1, round(self.rate * self.duration_s))


@dataclass(frozen=True)
class RequestResult:
    """One request. Milliseconds from when it was due; ``tpot_ms`` needs two tokens or more."""

    error: str | None = None
    output_tokens: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


Measure = Callable[[str, float], Awaitable[RequestResult]]


async def run_load(
    measure: Measure, prompts: Sequence[str], profile: LoadProfile
) -> list[RequestResult]:
    """Send the load and return all results, in the order in which they were due. ``measure`` gets a prompt and its due time."""
    started = time.perf_counter()

    async def request(number: int, prompt: str) -> RequestResult:
        due = started + number / profile.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        try:
            async with asyncio.timeout(profile.request_timeout_s):
                return await measure(prompt, due)
        except TimeoutError:
            return RequestResult(error=f"no whole answer within {profile.request_timeout_s:g} s")
        except ModelServerFault as fault:
            return RequestResult(error=str(fault))

    pairs = zip(range(profile.request_count), itertools.cycle(prompts), strict=False)
    return await asyncio.gather(*(request(number, prompt) for number, prompt in pairs))


async def measure_reply(
    server: ModelServer, endpoint: str, generation: Generation, due: float
) -> RequestResult:
    first: float | None = None
    tokens = 0
    async for chunk in server.generate(endpoint, generation):
        if first is None:
            first = time.perf_counter()
        tokens = chunk.completion_tokens or tokens
    last = time.perf_counter()
    if first is None:
        raise ModelServerFault("the stream ended without a single chunk")
    return RequestResult(
        output_tokens=tokens,
        ttft_ms=(first - due) * 1000,
        tpot_ms=(last - first) * 1000 / (tokens - 1) if tokens > 1 else None,
        e2e_ms=(last - due) * 1000,
    )


async def measure_scores(
    server: ModelServer, endpoint: str, model: str, texts: Sequence[str], due: float
) -> RequestResult:
    """Measure one request in which a reward model scores texts."""
    await server.classify(endpoint, model, texts)
    return RequestResult(e2e_ms=(time.perf_counter() - due) * 1000)


@dataclass(frozen=True)
class Prompted:
    """The parts that a submission's prompts are made of."""

    formatter: Prompt
    artifact_key: str
    params: GenerationParams


async def conversation_prompts(prompts: PromptService, prompted: Prompted) -> list[str]:
    """One prompt for each shipped bot and length that fits; ContextTooLong if not even a bare greeting does, BadPrompt if the template makes none."""
    made = []
    try:
        for bot in BOTS.values():
            for length in LENGTHS:
                try:
                    made.append(await _prompt(prompts, prompted, bot, CHAT[:length]))
                except MessageTooLong:
                    break
        return made or [await _bare_prompt(prompts, prompted)]
    except PromptFailed as error:
        raise BadPrompt(error.detail, hint="Submit with another prompt.") from None


async def _bare_prompt(prompts: PromptService, prompted: Prompted) -> str:
    turns = (Turn(sender=Sender.USER, content="Hi"),)
    try:
        return await _prompt(prompts, prompted, PLAIN_BOT, turns)
    except MessageTooLong as error:
        raise ContextTooLong(
            f"With this formatter not even a bare greeting fits into max_input_tokens = {prompted.params.max_input_tokens}: {error.detail}",
            hint="Raise max_input_tokens, or shorten the formatter's templates.",
        ) from None


async def _prompt(
    prompts: PromptService, prompted: Prompted, bot: Bot, turns: Sequence[Turn]
) -> str:
    return await prompts.render(
        formatter=prompted.formatter,
        artifact_key=prompted.artifact_key,
        max_input_tokens=prompted.params.max_input_tokens,
        bot=bot,
        user_name="You",
        turns=turns,
    )
