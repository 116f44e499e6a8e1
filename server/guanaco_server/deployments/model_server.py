"""The port to a model server: an OpenAI-compatible endpoint that generates text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from guanaco.submissions import GenerationParams


@dataclass(frozen=True)
class Generation:
    """What to generate."""

    model: str
    prompt: str
    params: GenerationParams


@dataclass(frozen=True)
class Chunk:
    """A piece of the reply. The last has a ``finish_reason`` and the token counts."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ModelServerFault(Exception):  # translated by each caller into its own error
    """The server refused, broke off or sent something else than it should; the text says which."""


class ModelServer(Protocol):
    async def is_healthy(self, endpoint: str) -> bool: ...

    def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream the reply; closing the iterator cancels the generation. Raises ModelServerFault."""
        ...

    async def close(self) -> None: ...
