"""One reply from a model server: rendered, trimmed, timed, within its deadlines, its faults translated.

Leading and trailing whitespace is held back, so that the tokens sent, joined, are the content that is stored.
A reply of nothing but whitespace is sampled once more; if that is empty too, the reply is an ellipsis, for a
user must never see an empty bubble.

Before the first token a replica that fails is replaced by the next, unnoticed; where none is left, another may become
ready within ``failover_s``. After it, the reply has failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from guanaco.chat import Bot, Timings, Usage
from guanaco.errors import ModelTimedOut, ModelUnavailable
from guanaco_server.chat.best_of import BestOf, Scene
from guanaco_server.deployments.model_server import Chunk, Generation, ModelServer, ModelServerFault
from guanaco_server.prompts.service import PromptService
from guanaco_server.prompts.transcript import Transcript
from guanaco_server.prompts.utterances import Spoken
from guanaco_server.routing.policy import LiveSubmission
from guanaco_server.routing.replicas import Replica, ReplicaChooser

SILENCE = "…"
SAMPLES = 2
POLL_S = 0.05  # between two looks for a replica, when none is left

logger = logging.getLogger(__name__)

Pieces = tuple[str, ...]


@dataclass(frozen=True)
class Deadlines:
    """Seconds from the beginning of the request; ``failover_s`` of them at most may go by without any replica to ask."""

    first_token_s: float
    reply_s: float
    failover_s: float = 0.0


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
        prompts: PromptService,
        replicas: ReplicaChooser,
        deadlines: Deadlines,
        endpoints: Callable[[str], Sequence[str]],
        report_fault: Callable[[str], None],
        best_of: BestOf | None = None,
    ) -> None:
        """``endpoints`` are those of a submission's replicas that are ready now."""
        self._model_server = model_server
        self._prompts = prompts
        self._replicas = replicas
        self._deadlines = deadlines
        self._endpoints = endpoints
        self._report_fault = report_fault
        self._best_of = best_of

    async def generate(
        self,
        live: LiveSubmission,
        bot: Bot,
        user_name: str,
        turns: Sequence[Spoken],
        key: str,
        transcript: Transcript | None = None,
    ) -> AsyncGenerator[Pieces | Generated, None]:
        """The reply's text, what comes together together, then the whole. Closing it cancels the generation upstream. Replies of one ``key`` prefer one replica."""
        prompt = await self.prompt(live, bot, user_name, turns, transcript)
        generation = Generation(live.serving.id, prompt, live.serving.params)
        scene = Scene(bot, user_name, turns, prompt)
        async with aclosing(self.complete(live, generation, key, scene)) as pieces:
            async for piece in pieces:
                yield piece

    async def prompt(
        self,
        live: LiveSubmission,
        bot: Bot,
        user_name: str,
        turns: Sequence[Spoken],
        transcript: Transcript | None = None,
    ) -> str:
        return await self._prompts.render(
            formatter=live.serving.formatter,
            artifact_key=live.serving.artifact_key,
            max_input_tokens=live.serving.params.max_input_tokens,
            bot=bot,
            user_name=user_name,
            turns=turns,
            transcript=transcript,
        )

    async def complete(
        self, live: LiveSubmission, generation: Generation, key: str, scene: Scene | None = None
    ) -> AsyncGenerator[Pieces | Generated, None]:
        """The same for a prompt that is ready; with a ``scene``, the best of several candidates."""
        started = time.perf_counter()
        first: float | None = None
        for is_last in (False,) * (SAMPLES - 1) + (True,):
            sample = _Sample()
            async with aclosing(self._chunks(live, generation, key, scene, started)) as chunks:
                async for chunk in chunks:
                    texts = sample.take(chunk)
                    if texts:
                        first = first or time.perf_counter()
                        yield texts
            content = sample.content
            if not content and is_last:
                content = SILENCE
                yield (SILENCE,)
            if content:
                break
        now = time.perf_counter()
        yield Generated(
            prompt=generation.prompt,
            content=content,
            finish_reason=sample.finish_reason,
            usage=sample.usage,
            reward_score=sample.reward_score,
            timings=Timings(
                ttft_ms=((first or now) - started) * 1000, total_ms=(now - started) * 1000
            ),
        )

    async def _chunks(
        self,
        live: LiveSubmission,
        generation: Generation,
        key: str,
        scene: Scene | None,
        started: float,
    ) -> AsyncGenerator[Chunk, None]:
        """From the conversation's replica; a reply that has not begun is asked of the next one."""
        endpoints: Sequence[str] = live.endpoints
        tried: set[str] = set()
        while True:
            endpoint = self._replicas.choose(key, endpoints, tried)
            if endpoint is None:
                endpoints = await self._another(generation.model, endpoints, started)
                tried.clear()
                continue
            tried.add(endpoint)
            has_begun = False
            with self._replicas.use(endpoint) as replica:
                try:
                    asked = self._ask(endpoint, generation, live, scene, started)
                    async with aclosing(self._stream(asked, generation, started)) as chunks:
                        async for chunk in chunks:
                            if not has_begun:
                                has_begun = True
                                waited_s = time.perf_counter() - started
                                self._replicas.note_first_token(replica, waited_s, endpoints)
                            yield chunk
                    return
                except ModelServerFault as fault:
                    self._note_fault(generation.model, replica, str(fault))
                    if has_begun:
                        raise ModelUnavailable(generation.model) from None
                except ModelTimedOut:
                    self._note_fault(generation.model, replica, "it was too slow")
                    raise

    async def _another(
        self, submission_id: str, failed: Sequence[str], started: float
    ) -> Sequence[str]:
        """Once all replicas have failed: those that are ready then, if they are others or have come back in time."""
        deadline = started + self._deadlines.failover_s
        while time.perf_counter() < deadline:
            await asyncio.sleep(POLL_S)
            if endpoints := self._endpoints(submission_id):
                return endpoints
        raise ModelUnavailable(submission_id)

    def _ask(
        self,
        endpoint: str,
        generation: Generation,
        live: LiveSubmission,
        scene: Scene | None,
        started: float,
    ) -> AsyncGenerator[Chunk, None]:
        if self._best_of is None or scene is None or generation.candidate_count == 1:
            return self._model_server.generate(endpoint, generation)
        until = started + self._deadlines.first_token_s
        return self._best_of.generate(endpoint, generation, live.serving, scene, until)

    async def _stream(
        self, asked: AsyncGenerator[Chunk, None], generation: Generation, started: float
    ) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        began = loop.time() - (time.perf_counter() - started)
        limit_s = self._deadlines.first_token_s
        try:
            async with (
                asyncio.timeout_at(began + limit_s) as deadline,
                aclosing(asked) as chunks,
            ):
                async for chunk in chunks:
                    if limit_s != self._deadlines.reply_s:
                        limit_s = self._deadlines.reply_s
                        deadline.reschedule(began + limit_s)
                    yield chunk
        except TimeoutError:
            raise ModelTimedOut(generation.model, limit_s) from None

    def _note_fault(self, submission_id: str, replica: Replica, what: str) -> None:
        self._replicas.note_fault(replica)
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
        self.finish_reason = "stop"
        self.usage = Usage(prompt_tokens=0, completion_tokens=0)
        self._texts: list[str] = []
        self.reward_score: float | None = None
        self._held = ""

    @property
    def content(self) -> str:
        return "".join(self._texts)

    def take(self, chunk: Chunk) -> Pieces:
        """The texts that may be sent now."""
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.reward_score = chunk.reward_score
            self.usage = Usage(
                prompt_tokens=chunk.prompt_tokens, completion_tokens=chunk.completion_tokens
            )
        sendable: list[str] = []
        for text in chunk.texts:
            if "\x00" in text:
                text = text.replace("\x00", "")  # which PostgreSQL does not store
            text = self._held + text
            if not self._texts and not sendable:
                text = text.lstrip()
            kept = text.rstrip()
            self._held = text[len(kept) :]
            if kept:
                sendable.append(kept)
        self._texts += sendable
        return tuple(sendable)
