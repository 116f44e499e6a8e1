"""A model server in memory, scripted by tests: what it replies, how slowly, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from guanaco_server.deployments.model_servers.model_server import (
    Candidate,
    Candidates,
    CannotSleep,
    Chunk,
    GeneratedToken,
    Generation,
    HoldsAnotherModel,
    ModelServerFault,
    ServerLoad,
    SleepLevel,
    SleepOrder,
    SwapOrder,
)
from guanaco_server.formats.control import ASLEEP

Rewards = Callable[[str], tuple[float, ...]]


@dataclass(frozen=True)
class Script:
    """One reply: its pieces, each a token, then the end; ``fault`` comes in the end's place, after the pieces. What follows the first piece waits until ``go_on`` is set."""

    pieces: Sequence[str] = ("Hello", " from", " memory.")
    fault: str | ModelServerFault | None = None
    delay_s: float = 0.0
    prompt_tokens: int = 7
    logprob: float = -1.0
    finish_reason: str = "stop"
    go_on: asyncio.Event | None = None


class MemoryModelServer:
    """Gives the scripts one after another and the last one for ever; remembers what it was asked. ``unhealthy`` endpoints refuse, ``silent`` ones take and do not answer."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts) or [Script()]
        self.generations: list[Generation] = []
        self.cancelled = 0
        self.unhealthy: set[str] = set()
        self.silent: set[str] = set()
        self.scores: list[tuple[float, ...] | ModelServerFault] = [(-1.0, -2.0)]
        self.loads: dict[str, ServerLoad] = {}
        self.scored: list[tuple[str, str]] = []
        self.rewards: Rewards = lambda text: (float(len(text)),)
        self.reward_delay_s = 0.0
        self.artifacts: dict[str, str] = {}
        self.swaps: list[tuple[str, SwapOrder]] = []
        self.swap_fault: ModelServerFault | None = None
        self.has_sleep_levels = False
        self.asleep: dict[str, SleepLevel] = {}
        self.adapters: dict[str, set[str]] = {}
        self.adapter_fault: ModelServerFault | None = None
        self.classified: list[tuple[str, tuple[str, ...]]] = []
        self.classified_salts: list[str] = []

    async def is_healthy(self, endpoint: str) -> bool:
        return endpoint not in self.unhealthy

    async def held_artifact(self, endpoint: str) -> str | None:
        return ASLEEP if endpoint in self.asleep else self.artifacts.get(endpoint)

    async def held_adapters(self, endpoint: str) -> frozenset[str] | None:
        return frozenset(self.adapters.get(endpoint, ()))

    async def load_adapter(self, endpoint: str, order: SwapOrder) -> None:
        if self.adapter_fault is not None:
            raise self.adapter_fault
        self.adapters.setdefault(endpoint, set()).add(_key_of(order))

    async def unload_adapter(self, endpoint: str, order: SwapOrder) -> None:
        self.adapters.get(endpoint, set()).discard(_key_of(order))

    async def swap(self, endpoint: str, order: SwapOrder) -> None:
        self.swaps.append((endpoint, order))
        if endpoint in self.silent:
            await asyncio.Event().wait()
        if self.swap_fault is not None:
            raise self.swap_fault
        self.artifacts[endpoint] = _key_of(order)
        self.asleep.pop(endpoint, None)
        self.adapters.pop(endpoint, None)

    async def sleep(self, endpoint: str, order: SleepOrder) -> None:
        if not self.has_sleep_levels:
            raise CannotSleep("Its engine cannot sleep: only one on a GPU can.")
        if self.artifacts.get(endpoint, order.artifact_key) != order.artifact_key:
            raise CannotSleep("It serves another artifact by now.")
        self.asleep[endpoint] = order.level

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        self.generations.append(generation)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if endpoint in self.unhealthy:
            raise ModelServerFault("The model server cannot be reached.")
        expected = generation.model.partition("#")[2]
        if endpoint in self.asleep or self.artifacts.get(endpoint, expected) != expected:
            raise HoldsAnotherModel("The model server holds another model.")
        try:
            if endpoint in self.silent:
                await asyncio.Event().wait()
            for piece in script.pieces:
                await asyncio.sleep(script.delay_s)
                tokens = (GeneratedToken(piece, script.logprob),) if generation.with_tokens else ()
                yield Chunk((piece,), tokens=tokens)
                if script.go_on is not None:
                    await script.go_on.wait()
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        if script.fault is not None:
            fault = script.fault
            raise ModelServerFault(fault) if isinstance(fault, str) else fault
        yield Chunk((), script.finish_reason, script.prompt_tokens, len(script.pieces))

    async def score(self, endpoint: str, model: str, text: str) -> tuple[float, ...]:
        """Gives ``scores`` one after another and the last one for ever."""
        self.scored.append((endpoint, text))
        score = self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]
        if isinstance(score, ModelServerFault):
            raise score
        return score

    async def candidates(self, endpoint: str, generation: Generation) -> Candidates:
        """Play one script for each candidate that is asked for."""
        replies, completion_tokens, prompt_tokens = list[Candidate](), 0, 0
        for _ in range(generation.candidate_count):
            script, text = self.scripts[0], ""
            async for chunk in self.generate(endpoint, generation):
                text += chunk.text
            replies.append(Candidate(text, script.finish_reason, script.logprob))
            completion_tokens += len(script.pieces)
            prompt_tokens = script.prompt_tokens
        return Candidates(tuple(replies), prompt_tokens, completion_tokens)

    async def classify(
        self, endpoint: str, model: str, texts: Sequence[str], cache_salt: str
    ) -> tuple[tuple[float, ...], ...]:
        """Return the logits that ``rewards`` gives for each text; it may raise ModelServerFault."""
        self.classified.append((endpoint, tuple(texts)))
        self.classified_salts.append(cache_salt)
        await asyncio.sleep(self.reward_delay_s)
        if endpoint in self.unhealthy:
            raise ModelServerFault("The model server cannot be reached.")
        return tuple(self.rewards(text) for text in texts)

    async def load(self, endpoint: str) -> ServerLoad:
        if endpoint in self.unhealthy:
            raise ModelServerFault("The model server cannot be reached.")
        return self.loads.get(endpoint, ServerLoad(0, 0))

    async def close(self) -> None:
        """Do nothing."""


def _key_of(order: SwapOrder) -> str:
    return order.artifact_uri.rstrip("/").rpartition("/")[2]
