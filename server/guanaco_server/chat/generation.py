"""One reply from a model server: rendered, trimmed, timed, within its deadlines, its faults translated.

Leading and trailing whitespace is held back, so that the tokens sent, joined, are the content that is stored.
A reply of nothing but whitespace is sampled once more; if that is empty too, the reply is an ellipsis, for a
user must never see an empty bubble.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from guanaco.chat import Bot, Timings, Turn, Usage
from guanaco.errors import ModelTimedOut, ModelUnavailable
from guanaco_server.chat.best_of import BestOf, Scene
from guanaco_server.deployments.model_server import Chunk, Generation, ModelServer, ModelServerFault
from guanaco_server.prompts.rendering import render
from guanaco_server.prompts.tokenizers import TokenizerCache
from guanaco_server.routing.policy import LiveSubmission

SILENCE = "…"
SAMPLES = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deadlines:
    """Seconds from the beginning of the request."""

    first_token_s: float
    reply_s: float


@dataclass(frozen=True)
class Generated:
    """A whole reply, after its last token; ``prompt`` is the very text that the model got."""

    prompt: str
    content: str
    finish_reason: str
    usage: Usage
    timings: Timings
    reward_score: float | None = None


class ReplyGenerator:
    def __init__(
        self,
        model_server: ModelServer,
        tokenizers: TokenizerCache,
        deadlines: Deadlines,
        report_fault: Callable[[str], None],
        best_of: BestOf | None = None,
    ) -> None:
        self._model_server = model_server
        self._tokenizers = tokenizers
        self._deadlines = deadlines
        self._report_fault = report_fault
        self._best_of = best_of

    async def generate(
        self, live: LiveSubmission, bot: Bot, user_name: str, turns: Sequence[Turn]
    ) -> AsyncGenerator[str | Generated, None]:
        """The reply's text, piece by piece, then the whole. Closing it cancels the generation upstream."""
        started = time.perf_counter()
        prompt = render(
            formatter=live.serving.formatter,
            bot=bot,
            user_name=user_name,
            turns=turns,
            count_tokens=await self._tokenizers.count_with(live.serving.artifact_key),
            max_input_tokens=live.serving.params.max_input_tokens,
        )
        scene = Scene(bot, user_name, turns, prompt)
        first: float | None = None
        for is_last in (False,) * (SAMPLES - 1) + (True,):
            sample = _Sample()
            async for chunk in self._chunks(live, scene, started):
                text = sample.take(chunk)
                if text:
                    first = first or time.perf_counter()
                    yield text
            if not sample.content and is_last:
                sample.content = SILENCE
                yield SILENCE
            if sample.content:
                break
        now = time.perf_counter()
        yield Generated(
            prompt=prompt,
            content=sample.content,
            finish_reason=sample.finish_reason,
            usage=sample.usage,
            reward_score=sample.reward_score,
            timings=Timings(
                ttft_ms=((first or now) - started) * 1000, total_ms=(now - started) * 1000
            ),
        )

    async def _chunks(
        self, live: LiveSubmission, scene: Scene, started: float
    ) -> AsyncIterator[Chunk]:
        """From the nearest server; a reply that has not begun is asked of the next one."""
        assert live.endpoint is not None, "routing gives targets that are ready"
        submission_id = live.serving.id
        generation = Generation(submission_id, scene.prompt, live.serving.params)
        left = deque((live.endpoint, *live.spares))
        while left:
            has_begun = False
            try:
                until = started + self._deadlines.first_token_s
                asked = self._ask(left.popleft(), generation, live, scene, until)
                async with aclosing(self._stream(asked, generation, started)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
                return
            except ModelServerFault as fault:
                self._note_fault(submission_id, str(fault))
                if has_begun or not left:
                    raise ModelUnavailable(submission_id) from None

    def _ask(
        self,
        endpoint: str,
        generation: Generation,
        live: LiveSubmission,
        scene: Scene,
        until: float,
    ) -> AsyncGenerator[Chunk, None]:
        if self._best_of is None or generation.candidate_count == 1:
            return self._model_server.generate(endpoint, generation)
        return self._best_of.generate(endpoint, generation, live.serving, scene, until)

    async def _stream(
        self, asked: AsyncGenerator[Chunk, None], generation: Generation, started: float
    ) -> AsyncGenerator[Chunk, None]:
        limit_s = self._deadlines.first_token_s
        try:
            async with aclosing(asked) as chunks:
                while True:
                    left_s = limit_s - (time.perf_counter() - started)
                    async with asyncio.timeout(max(0.0, left_s)):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
                    limit_s = self._deadlines.reply_s
        except TimeoutError:
            self._note_fault(generation.model, "was too slow")
            raise ModelTimedOut(generation.model, limit_s) from None

    def _note_fault(self, submission_id: str, what: str) -> None:
        logger.warning(
            "the model server of %s failed: %s",
            submission_id,
            what,
            extra={"submission_id": submission_id},
        )
        self._report_fault(submission_id)


class _Sample:
    """Collects one sample's chunks."""

    def __init__(self) -> None:
        self.content = ""
        self.finish_reason = "stop"
        self.usage = Usage(prompt_tokens=0, completion_tokens=0)
        self.reward_score: float | None = None
        self._held = ""

    def take(self, chunk: Chunk) -> str:
        """The text that may be sent now."""
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.reward_score = chunk.reward_score
            self.usage = Usage(
                prompt_tokens=chunk.prompt_tokens, completion_tokens=chunk.completion_tokens
            )
        text = self._held + chunk.text.replace("\x00", "")  # which PostgreSQL does not store
        if not self.content:
            text = text.lstrip()
        sendable = text.rstrip()
        self._held = text[len(sendable) :]
        self.content += sendable
        return sendable
