"""Generates one reply: renders the prompt, asks a replica, trims the text, keeps the deadlines, translates faults.

Whitespace at the beginning and the end of a reply is held back, so that the tokens that were sent, joined, are the content
that is stored. A reply of whitespace only is sampled once more; if that is empty too, the reply is an ellipsis, because a
user must never see an empty message.

A reply takes a place at its model before a replica is asked (places/places.py), and its deadlines begin when it has one.

If a replica fails before the first token, the next one is asked. If none is left, the gateway waits up to ``failover_s``
for one to become ready. After the first token, the reply has failed.

A server that was given another model (409) has not failed: its model is looked for, woken if it sleeps, and asked where it
is then. What waking takes does not count against the deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace

from guanaco.chat import Bot, Timings, Usage
from guanaco.errors import (
    GuanacoError,
    MessageTooLong,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
)
from guanaco_server.chat.gateway.best_of import BestOf, ReplyContext
from guanaco_server.chat.gateway.deadline import Deadline
from guanaco_server.chat.gateway.failure_log import FailureLog
from guanaco_server.chat.gateway.places.places import TurnPlace, TurnPlaces
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.chat.gateway.stopping import STOPPED, Stop
from guanaco_server.deployments.model_servers.model_server import (
    Chunk,
    Generation,
    HoldsAnotherModel,
    ModelServer,
    ModelServerFault,
    RequestRefused,
    cache_salt_of,
)
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.tracing import span
from guanaco_server.prompts.history.lore import without_newest_lore
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.layouts import ChatTurn
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.prefixes import SharedPrefix
from guanaco_server.routing.replicas import Ask, ReplicaChooser
from guanaco_server.routing.service import LiveSubmission

SILENCE = "…"
SAMPLES = 2
POLL_S = 0.05  # between two looks for a replica, when none is left
LOOK_S = 0.2  # between two looks into the database for it
MOVED_S = 3.0  # a gateway learns within a second where a model has gone, and a busy machine takes its time


Pieces = tuple[str, ...]  # texts that arrived together


@dataclass(frozen=True)
class Deadlines:
    """Limits in seconds, counted from when the turn is claimed and its model awake, without the wait for a place.

    ``failover_s`` is how long a reply may wait while no replica can be asked.
    """

    first_token_s: float
    reply_s: float
    failover_s: float = 0.0


@dataclass(frozen=True)
class Generated:
    """A whole reply. ``prompt`` is the text that the model got."""

    prompt: str
    content: str
    finish_reason: str
    usage: Usage
    timings: Timings
    reward_score: float | None = None


GeneratedPieces = AsyncGenerator[Pieces | Generated, None]


class ReplyGenerator:
    def __init__(
        self,
        model_server: ModelServer,
        prompts: PromptService,
        places: TurnPlaces,
        replicas: ReplicaChooser,
        deadlines: Deadlines,
        endpoints: Callable[[str], Sequence[str]],
        model_name: Callable[[str], str],
        find_again: Callable[[str, bool], Awaitable[Sequence[str]]],
        report_fault: Callable[[str], None],
        metrics: Metrics,
        best_of: BestOf,
    ) -> None:
        """``endpoints`` are those of a submission's replicas that are ready now, ``model_name`` is what a request expects there. ``find_again`` looks where its model is when none of them serves it, and is told whether they were given another one."""
        self._model_server = model_server
        self._prompts = prompts
        self._places = places
        self._replicas = replicas
        self._deadlines = deadlines
        self._endpoints = endpoints
        self._model_name = model_name
        self._find_again = find_again
        self._report_fault = report_fault
        self._metrics = metrics
        self._best_of = best_of
        self._failures = FailureLog()

    async def generate(
        self,
        live: LiveSubmission,
        bot: Bot,
        user_name: str,
        turns: Sequence[ChatTurn],
        key: str,
        asker: Asker,
        transcript: Transcript | None = None,
        asked_at: float | None = None,
        seed: int | None = None,
        begun: str = "",
        stop: Stop | None = None,
        prefix: SharedPrefix | None = None,
    ) -> GeneratedPieces:
        """Return the reply's text, what comes together together, then the whole. Closing it cancels the generation upstream.

        With ``begun``, the reply so far, only what is added, which may be nothing. Replies of one ``key`` prefer one replica, those of one ``prefix`` the replicas that hold it. ``asked_at``, on the performance counter, is when the user's wait began. ``stop`` ends a reply that has begun: the whole is then what was written.
        """
        began = asyncio.get_running_loop().time()
        limit_s = self._deadlines.first_token_s
        try:
            with Deadline(began + limit_s), span("render the prompt"):
                prompt = await self.prompt(live, bot, user_name, turns, transcript, begun)
        except TimeoutError:
            raise ModelTimedOut(live.serving.id, limit_s) from None
        except MessageTooLong as error:
            if begun:
                raise _too_long_to_continue(error, live.serving.params.max_input_tokens) from None
            raise
        generation = Generation(
            live.model,
            prompt,
            live.serving.params,
            seed=seed,
            cache_salt=cache_salt_of(live.serving.developer, asker.account_id),
        )
        context = ReplyContext(bot, user_name, turns, prompt, generation.cache_salt, begun)
        return self.complete(live, generation, key, asker, context, began, asked_at, stop, prefix)

    async def prompt(
        self,
        live: LiveSubmission,
        bot: Bot,
        user_name: str,
        turns: Sequence[ChatTurn],
        transcript: Transcript | None = None,
        begun: str = "",
    ) -> str:
        """Render the prompt; where the newest message has no room for its entries of the lorebook, without these."""
        try:
            return await self._rendered(live, bot, user_name, turns, transcript, begun)
        except MessageTooLong:
            if (bare := without_newest_lore(turns)) is None:
                raise
        return await self._rendered(live, bot, user_name, bare, None, begun)

    async def _rendered(
        self,
        live: LiveSubmission,
        bot: Bot,
        user_name: str,
        turns: Sequence[ChatTurn],
        transcript: Transcript | None,
        begun: str,
    ) -> str:
        return await self._prompts.render(
            formatter=live.serving.formatter,
            artifact_key=live.serving.artifact_key,
            max_input_tokens=live.serving.params.max_input_tokens,
            bot=bot,
            user_name=user_name,
            turns=turns,
            transcript=transcript,
            within_s=self._deadlines.first_token_s,
            begun=begun,
        )

    async def complete(
        self,
        live: LiveSubmission,
        generation: Generation,
        key: str,
        asker: Asker,
        context: ReplyContext | None = None,
        began: float | None = None,
        asked_at: float | None = None,
        stop: Stop | None = None,
        prefix: SharedPrefix | None = None,
    ) -> GeneratedPieces:
        """Yield the same for a prompt that is ready; with a ``context``, the best of several candidates. It is counted however it ends.

        The deadlines count from ``began`` on the loop's clock, without the wait for a place. Overloaded where none comes.
        """
        began = asyncio.get_running_loop().time() if began is None else began
        with self._metrics.reply(live.serving.id, asked_at) as measured:
            with await self._place(live.version, asker, generation.candidate_count) as place:
                began += place.waited_s
                goes_on = context is not None and bool(context.begun)
                for is_last in (False,) * (SAMPLES - 1) + (True,):
                    text = ReplyText(goes_on)
                    chunks = self._chunks(live, generation, key, prefix, context, began)
                    with stop or nullcontext():
                        async with aclosing(chunks):
                            async for chunk in chunks:
                                if texts := text.take(chunk):
                                    measured.note_text()
                                    yield texts
                    if stop is not None and stop.is_heeded:
                        text.finish_reason = STOPPED
                    place.note_tokens(
                        text.prompt_tokens - text.cached_tokens, text.completion_tokens
                    )
                    content = text.content
                    if not content and is_last and not goes_on:
                        content = SILENCE
                        yield (SILENCE,)
                    if content or goes_on:
                        break
            ttft_s, total_s = measured.note_end(
                text.prompt_tokens, text.completion_tokens, text.cached_tokens
            )
            yield Generated(
                prompt=generation.prompt,
                content=content,
                finish_reason=text.finish_reason,
                usage=Usage(
                    prompt_tokens=text.prompt_tokens, completion_tokens=text.completion_tokens
                ),
                reward_score=text.reward_score,
                timings=Timings(ttft_ms=ttft_s * 1000, total_ms=total_s * 1000),
            )

    async def _place(self, submission_id: str, asker: Asker, candidates: int) -> TurnPlace:
        with span("wait for a place"):
            return await self._places.take(submission_id, asker, candidates)

    async def _chunks(
        self,
        live: LiveSubmission,
        generation: Generation,
        key: str,
        prefix: SharedPrefix | None,
        context: ReplyContext | None,
        began: float,
    ) -> AsyncGenerator[Chunk, None]:
        """Stream from the conversation's replica, within the deadlines. A reply that has not begun is asked of the next one."""
        loop, limits = asyncio.get_running_loop(), self._deadlines
        first_token_by = began + limits.first_token_s
        endpoints: Sequence[str] = live.endpoints
        tried: set[str] = set()
        has_moved = False
        places = self._places.held(live.version)
        while True:
            endpoint = self._replicas.choose(key, endpoints, tried, places, prefix)
            if endpoint is None:
                endpoints, woken_s = await self._another(live.serving.id, began, has_moved)
                generation = replace(generation, model=self._model_name(live.serving.id))
                began += woken_s
                first_token_by = began + limits.first_token_s
                tried.clear()
                continue
            tried.add(endpoint)
            is_streamed, has_begun = generation.candidate_count == 1, False
            is_last = len(tried) == len(endpoints) or not is_streamed
            give_up_at = first_token_by if is_last else (loop.time() + first_token_by) / 2
            asked_at, first_token_s = loop.time(), 0.0
            with (
                self._replicas.ask(
                    endpoint, endpoints, generation.candidate_count, key=key, prefix=prefix
                ) as ask,
                span("model server", is_call=True) as step,
            ):
                if step.traceparent:
                    step.note(submission_id=live.serving.id, endpoint=endpoint)
                    generation = replace(generation, traceparent=step.traceparent)
                try:
                    asked = self._ask(endpoint, generation, live, context, first_token_by)
                    with Deadline(give_up_at, _extension(ask, first_token_by)) as deadline:
                        async with aclosing(asked) as chunks:
                            async for chunk in chunks:
                                if not has_begun:
                                    has_begun = True
                                    first_token_s = loop.time() - asked_at
                                    deadline.move(began + limits.reply_s)
                                    ask.note_first_token()
                                    step.note(has_begun=True)
                                if chunk.finish_reason is not None:
                                    ask.note_tokens(
                                        chunk.prompt_tokens,
                                        chunk.cached_tokens,
                                        chunk.completion_tokens,
                                    )
                                    step.note(
                                        prompt_tokens=chunk.prompt_tokens,
                                        cached_tokens=chunk.cached_tokens,
                                        completion_tokens=chunk.completion_tokens,
                                    )
                                yield chunk
                    ask.note_end()
                    if live.compared is not None and endpoint in live.endpoints:
                        live.compared.note_reply(first_token_s)
                    return
                except (ModelServerFault, TimeoutError) as failure:
                    step.note(error=type(failure).__name__)
                    has_moved = isinstance(failure, HoldsAnotherModel)
                    is_its_fault = self._note_failure(live.serving.id, endpoint, ask, failure)
                    if live.compared is not None and is_its_fault and endpoint in live.endpoints:
                        live.compared.note_fault()
                    is_late = has_begun or loop.time() >= first_token_by
                    if error := self._final(live.serving.id, failure, has_begun, is_late):
                        raise error from None

    async def _another(
        self, submission_id: str, began: float, has_moved: bool
    ) -> tuple[Sequence[str], float]:
        """Once all replicas have failed: those that are ready then, if they are others or have come back in time. Also how long waking took."""
        loop = asyncio.get_running_loop()
        limit_s = self._deadlines.failover_s
        until = began + (max(limit_s, MOVED_S) if has_moved else limit_s)
        look_at = loop.time() + (0.0 if has_moved else LOOK_S)
        while loop.time() < until:
            await asyncio.sleep(POLL_S)
            if not has_moved and (endpoints := self._endpoints(submission_id)):
                return endpoints, 0.0
            if (looked_at := loop.time()) < look_at:
                continue
            if found := await self._find_again(submission_id, has_moved):
                return found, loop.time() - looked_at
            look_at = loop.time() + LOOK_S
        raise ModelUnavailable(submission_id)

    def _ask(
        self,
        endpoint: str,
        generation: Generation,
        live: LiveSubmission,
        context: ReplyContext | None,
        until: float,
    ) -> AsyncGenerator[Chunk, None]:
        if context is None or generation.candidate_count == 1:
            return self._model_server.generate(endpoint, generation)
        return self._best_of.generate(endpoint, generation, live.serving, context, until)

    def _note_failure(
        self, submission_id: str, endpoint: str, ask: Ask, failure: Exception
    ) -> bool:
        """Report the failure of a replica. A refusal or a long queue is not the server's fault: False."""
        is_timeout = isinstance(failure, TimeoutError)
        why = "it was too slow" if is_timeout else str(failure)
        self._failures.note(submission_id, endpoint, why)
        if isinstance(failure, RequestRefused) or (is_timeout and ask.is_answering):
            return False
        if isinstance(failure, HoldsAnotherModel):
            self._report_fault(submission_id)
            return False
        ask.note_fault()
        self._report_fault(submission_id)
        return True

    def _final(
        self, submission_id: str, failure: Exception, has_begun: bool, is_late: bool
    ) -> GuanacoError | None:
        """Return the error for the caller; None if the next replica may be asked."""
        if isinstance(failure, RequestRefused):
            return ModelRefused(submission_id)
        if not isinstance(failure, TimeoutError):
            return ModelUnavailable(submission_id) if has_begun else None
        limits = self._deadlines
        limit_s = limits.reply_s if has_begun else limits.first_token_s
        return ModelTimedOut(submission_id, limit_s) if is_late else None


def _too_long_to_continue(error: MessageTooLong, budget: int) -> MessageTooLong:
    return MessageTooLong(
        f"The bot's persona, the newest message and the reply so far take {error.tokens:,} tokens; this model is given {budget:,}.",
        hint="Send a message instead: this reply cannot get longer.",
        tokens=error.tokens,
    )


def _extension(ask: Ask, first_token_by: float) -> Callable[[], float]:
    """A replica that answers others meanwhile is busy: leaving it for the next one would only ask for more."""
    return lambda: first_token_by if ask.is_answering else 0.0


class ReplyText:
    """Collects one reply's chunks without the whitespace around the whole.

    Whitespace at the end is held back until more text comes, so that the texts that were sent, joined, are ``content``.
    What ``goes_on`` from a text that is there keeps the whitespace at its beginning.
    """

    __slots__ = ("_goes_on", "_held", "_texts", "cached_tokens", "completion_tokens", "finish_reason", "prompt_tokens", "reward_score")  # fmt: skip

    def __init__(self, goes_on: bool = False) -> None:
        self.finish_reason = "stop"
        self._goes_on = goes_on
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.reward_score: float | None = None
        self._texts: list[str] = []
        self._held = ""

    @property
    def content(self) -> str:
        return "".join(self._texts)

    def take(self, chunk: Chunk) -> Pieces:
        """Take a chunk and return the texts that may be sent now."""
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.reward_score = chunk.reward_score
            self.prompt_tokens = chunk.prompt_tokens
            self.completion_tokens = chunk.completion_tokens
            self.cached_tokens = chunk.cached_tokens
        texts = self._sendable([*chunk.texts])
        self._texts += texts
        return tuple(texts)

    def _sendable(self, texts: list[str]) -> list[str]:
        if "\x00" in "".join(texts):  # which PostgreSQL does not store
            texts = [text.replace("\x00", "") for text in texts]
        if self._held and texts:
            texts[0], self._held = self._held + texts[0], ""
        begin, end = 0, len(texts)
        while not (self._texts or self._goes_on) and begin < end:
            if text := texts[begin].lstrip():
                texts[begin] = text
                break
            begin += 1
        while begin < end:
            text = texts[end - 1]
            if kept := text.rstrip():
                self._held = text[len(kept) :] + self._held
                texts[end - 1] = kept
                break
            self._held = text + self._held
            end -= 1
        return [text for text in texts[begin:end] if text]
