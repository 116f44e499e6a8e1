"""The port to a model server: an OpenAI-compatible endpoint that generates text, or scores it."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Protocol

from guanaco.submissions import GenerationParams


def cache_salt_of(developer: str, account_id: str = "") -> str:
    """Return the salt of what one account asks a developer's submissions; without one, of what the platform asks them.

    Nobody learns by the time to first token what others asked a submission, or what the submissions of another developer were asked.
    """
    return blake2b(f"{developer}\0{account_id}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Generation:
    """One request for text. ``with_tokens`` asks for the reply's tokens too, where there is one candidate. The same ``seed`` draws the same text.

    Requests of one ``cache_salt`` share cached prefixes, and with no others.

    ``traceparent`` tells the server to which span of a trace its work belongs; empty where nothing is traced.
    """

    model: str
    prompt: str
    params: GenerationParams
    with_tokens: bool = False
    seed: int | None = None
    traceparent: str = ""
    cache_salt: str = ""

    @property
    def candidate_count(self) -> int:
        """Return how many replies to choose from."""
        return self.params.candidate_count


@dataclass(frozen=True)
class GeneratedToken:
    """A token of a reply. ``logprob`` is NaN if the model computed no number."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """The texts of tokens that arrived together. The last chunk has a ``finish_reason`` and the token counts.

    ``cached_tokens`` are those of the prompt that the server had computed before.
    """

    texts: tuple[str, ...]
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: tuple[GeneratedToken, ...] = ()
    reward_score: float | None = None
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True)
class Candidate:
    """One of several whole replies to the same prompt."""

    text: str
    finish_reason: str
    mean_logprob: float


@dataclass(frozen=True)
class Candidates:
    """At least one candidate, with the token counts of all together."""

    replies: tuple[Candidate, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def best(self) -> int:
        """Return the index of the candidate with the highest mean token log-probability, preferring candidates with text."""

        def rank(index: int) -> tuple[bool, float]:
            reply = self.replies[index]
            return bool(reply.text.strip()), reply.mean_logprob

        return max(range(len(self.replies)), key=rank)

    def chunk(self, index: int, reward_score: float | None = None) -> Chunk:
        """Return this candidate as a whole reply."""
        chosen = self.replies[index]
        return Chunk(
            (chosen.text,),
            chosen.finish_reason,
            self.prompt_tokens,
            self.completion_tokens,
            reward_score=reward_score,
            cached_tokens=self.cached_tokens,
        )


@dataclass(frozen=True)
class ServerLoad:
    """Requests that a server works on now, and those that wait for it. ``kv_cache_usage`` is the used share of its KV cache."""

    running: int
    waiting: int
    kv_cache_usage: float = 0.0


class ModelServerFault(Exception):  # translated by each caller into its own error
    """The server refused, broke off or sent something else than it should; the text says which."""


class RequestRefused(ModelServerFault):
    """The request is refused, and any other server would refuse it too."""


class HoldsAnotherModel(ModelServerFault):
    """The server was given another model since, or is being given one: the right one is elsewhere."""


class AdapterRefused(ModelServerFault):
    """The server cannot use the adapter; asking again changes nothing."""


class NotANumber(ModelServerFault):
    """The server refused because the model computed NaN."""


class ServerBusy(ModelServerFault):
    """The server has not changed its model, for it still answers with the one that it has."""


class CannotSleep(ModelServerFault):
    """The server has no levels of sleep: its engine is on no GPU."""


class SleepLevel(IntEnum):
    """vLLM's levels of sleep, both of which leave the GPU's memory."""

    KEEPS_WEIGHTS = 1  # in the machine's memory
    KEEPS_NOTHING = 2


@dataclass(frozen=True)
class SleepOrder:
    """How deep a model server is to sleep, the artifact that it must hold for that, and how long its open replies may take before."""

    level: SleepLevel
    artifact_key: str
    token: str = field(repr=False)
    drain_s: float = 5.0


@dataclass(frozen=True)
class SwapOrder:
    """The artifact that a model server is to hold, and the secrets for it."""

    artifact_uri: str
    token: str = field(repr=False)
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    drain_s: float = 60.0


class ModelServer(Protocol):
    async def is_healthy(self, endpoint: str) -> bool: ...

    async def held_artifact(self, endpoint: str) -> str | None:
        """Return the key of the artifact that the server holds, or ``ASLEEP``; None if it cannot say, and was given no other since its start."""
        ...

    async def swap(self, endpoint: str, order: SwapOrder) -> None:
        """Have the server take another artifact's weights. ServerBusy while its replies are not complete; after any other ModelServerFault it must be replaced."""
        ...

    async def sleep(self, endpoint: str, order: SleepOrder) -> None:
        """Have the server leave its GPU's memory, until a swap wakes it, to its own artifact too.

        CannotSleep where it has no levels, and ServerBusy while its replies are not complete; nothing has changed then.
        """
        ...

    async def held_adapters(self, endpoint: str) -> frozenset[str] | None:
        """Return the keys of the adapters that the server holds; None if it takes none. Raises ModelServerFault."""
        ...

    async def load_adapter(self, endpoint: str, order: SwapOrder) -> None:
        """Have the server hold this adapter too. AdapterRefused if it cannot; another ModelServerFault may pass."""
        ...

    async def unload_adapter(self, endpoint: str, order: SwapOrder) -> None:
        """Have the server forget this adapter. Raises ModelServerFault."""
        ...

    def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream the reply; closing the iterator cancels the generation. Raises ModelServerFault."""
        ...

    async def candidates(self, endpoint: str, generation: Generation) -> Candidates:
        """``params.best_of`` whole replies. Raises ModelServerFault."""
        ...

    async def classify(
        self, endpoint: str, model: str, texts: Sequence[str], cache_salt: str
    ) -> tuple[tuple[float, ...], ...]:
        """Return a sequence classifier's logits by text and label. Texts are cut from the left to fit. Raises ModelServerFault.

        Texts of one ``cache_salt`` share cached prefixes, and with no others; an empty one is everybody's.
        """
        ...

    async def score(self, endpoint: str, model: str, text: str) -> tuple[float, ...]:
        """Return the log-probability of each token of the text but the first, given those before it. Raises ModelServerFault."""
        ...

    async def load(self, endpoint: str) -> ServerLoad:
        """Return how busy the server is. Raises ModelServerFault."""
        ...

    async def close(self) -> None: ...


def reward_score(logits: Sequence[float]) -> float:
    """Higher is better."""
    *others, last = logits
    if not others:
        return last
    highest = max(others)
    return last - highest - math.log(sum(math.exp(other - highest) for other in others))
