"""A model server in memory, scripted by tests: what it replies, how slowly, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from guanaco_server.deployments.model_server import Chunk, Generation, ModelServerFault


@dataclass(frozen=True)
class Script:
    """One reply: its pieces, then the end; ``fault`` comes in the end's place, after the pieces."""

    pieces: Sequence[str] = ("Hello", " from", " memory.")
    fault: str | None = None
    delay_s: float = 0.0
    prompt_tokens: int = 7


class MemoryModelServer:
    """Gives the scripts one after another and the last one for ever; remembers what it was asked."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts) or [Script()]
        self.generations: list[Generation] = []
        self.cancelled = 0
        self.unhealthy: set[str] = set()

    async def is_healthy(self, endpoint: str) -> bool:
        return endpoint not in self.unhealthy

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        self.generations.append(generation)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if endpoint in self.unhealthy:
            raise ModelServerFault("The model server cannot be reached.")
        try:
            for piece in script.pieces:
                await asyncio.sleep(script.delay_s)
                yield Chunk(piece)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        if script.fault is not None:
            raise ModelServerFault(script.fault)
        yield Chunk("", "stop", script.prompt_tokens, len(script.pieces))

    async def close(self) -> None:
        """Nothing is held."""
