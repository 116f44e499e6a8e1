"""Whether a model that is served says something that can be used.

    before it is started   vocabulary       the tokenizer's ids and the special ids are rows of the embedding
                           stopping words   the tokenizer can spell each
    when it is healthy     answers          several short prompts, greedily, each with at least a token
                           numbers          no token's log-probability is NaN
                           not empty        some reply has text
                           not constant     the replies are not one token again and again
                           ends             with the submission's own prompts and parameters, in time

Of a reward model, score_checks.py looks at the scores. Whoever fails one is told which, with the prompt and the
reply. A server that breaks is ModelServerDied.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from guanaco.errors import ContentCheckFailed, ModelServerDied
from guanaco.submissions import GenerationParams, Level, Stage, Submission, SubmissionKind
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.deployments.model_server import (
    Generation,
    ModelServer,
    ModelServerFault,
    NotANumber,
    Token,
)
from guanaco_server.prompts.service import PromptService
from guanaco_server.stress.workload import Prompted, conversation_prompts
from guanaco_server.submissions.pipeline.journal import Journal, Ticket
from guanaco_server.submissions.pipeline.score_checks import check_scores
from guanaco_server.submissions.pipeline.vocabulary_checks import check_sizes, check_stopping_words

PROMPTS = ("Hello", "My name is", "2 + 2 =", "Once upon", "Why?")
PROBE = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=8)  # greedy
OWN_PROBES = 3  # whole replies, side by side
SHOWN_CHARS = 60


@dataclass(frozen=True)
class Probe:
    """What a model made of a prompt."""

    prompt: str
    reply: str
    finish_reason: str | None
    token_count: int
    tokens: tuple[Token, ...]


class ContentChecks:
    """``deadline_s`` is the longest that a whole reply may take."""

    def __init__(
        self,
        journal: Journal,
        store: ArtifactStore,
        prompts: PromptService,
        model_server: ModelServer,
        deadline_s: float,
    ) -> None:
        self._journal = journal
        self._store = store
        self._prompts = prompts
        self._model_server = model_server
        self._deadline_s = deadline_s

    async def check_files(self, ticket: Ticket, submission: Submission) -> None:
        """Before the model is served: its artifact's files alone."""
        assert submission.artifact_key is not None, "the serialize stage is done"
        tokenizer = await self._prompts.tokenizers.tokenizer(submission.artifact_key)
        config = await self._read_json(submission.artifact_key, "config.json")
        generation = await self._read_json(submission.artifact_key, "generation_config.json")
        sizes = await asyncio.to_thread(check_sizes, tokenizer, config, generation)
        await self._pass(ticket, "vocabulary", sizes)
        if submission.kind is SubmissionKind.REWARD:
            return
        words = submission.params.stopping_words
        await self._pass(
            ticket,
            "stopping words",
            await asyncio.to_thread(check_stopping_words, tokenizer, words),
        )

    async def check_served(self, ticket: Ticket, submission: Submission, endpoint: str) -> None:
        """With the model healthy: what it says, or how it scores."""
        if submission.kind is SubmissionKind.CHAT:
            await self.check_replies(ticket, submission, endpoint)
            return
        found = await check_scores(self._model_server, endpoint, submission.id, self._deadline_s)
        await self._journal.log(ticket, Stage.DEPLOY, *found)

    async def check_replies(self, ticket: Ticket, submission: Submission, endpoint: str) -> None:
        """With the model healthy: what it says."""
        probes = [
            await self._probe(endpoint, Generation(submission.id, prompt, PROBE, with_tokens=True))
            for prompt in PROMPTS
        ]
        for name, check in REPLY_CHECKS.items():
            await self._pass(ticket, name, check(probes))
        await self._check_ends(ticket, submission, endpoint)

    async def _check_ends(self, ticket: Ticket, submission: Submission, endpoint: str) -> None:
        assert submission.artifact_key is not None, "the serialize stage is done"
        params = submission.params
        prompted = Prompted(submission.formatter, submission.artifact_key, params)
        prompts = (await conversation_prompts(self._prompts, prompted))[:OWN_PROBES]
        probes = await asyncio.gather(
            *(
                self._probe(endpoint, Generation(submission.id, prompt, params))
                for prompt in prompts
            )
        )
        if any(probe.finish_reason == "stop" for probe in probes):
            await self._pass(ticket, "ends", "A reply to a real prompt ends by itself.")
            return
        await self._journal.log(
            ticket,
            Stage.DEPLOY,
            f"None of {len(probes)} replies ended by itself within max_output_tokens = {params.max_output_tokens}: no stopping word and no end of text came up. {_shown(probes[0])}",
            level=Level.WARNING,
        )

    async def _probe(self, endpoint: str, generation: Generation) -> Probe:
        text, reason, count, tokens = "", None, 0, list[Token]()
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                aclosing(self._model_server.generate(endpoint, generation)) as chunks,
            ):
                async for chunk in chunks:
                    text += chunk.text
                    tokens.extend(chunk.tokens)
                    reason = chunk.finish_reason or reason
                    count = chunk.completion_tokens or count
        except TimeoutError:
            raise _late(generation.prompt, text, self._deadline_s) from None
        except NotANumber as fault:
            raise no_number(generation.prompt, str(fault)) from None
        except ModelServerFault as fault:
            raise ModelServerDied(f"The model server is up but cannot generate: {fault}") from None
        return Probe(generation.prompt, text, reason, count, tuple(tokens))

    async def _read_json(self, artifact_key: str, path: str) -> dict[str, Any]:
        """Of a file that was checked before it was serialized; nothing where the artifact lacks it."""
        try:
            content = json.loads(await self._store.read(artifact_key, path))
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    async def _pass(self, ticket: Ticket, name: str, found: str) -> None:
        await self._journal.log(ticket, Stage.DEPLOY, f"Content check `{name}` passed: {found}")


def check_answers(probes: list[Probe]) -> str:
    for probe in probes:
        if probe.token_count == 0:
            raise ContentCheckFailed(
                f"Content check `answers` failed: to {_cut(probe.prompt)} the model generated no token."
            )
    return f"{len(probes)} prompts got {sum(probe.token_count for probe in probes)} tokens."


def check_numbers(probes: list[Probe]) -> str:
    for probe in probes:
        for token in probe.tokens:
            if math.isnan(token.logprob):
                raise no_number(
                    probe.prompt, f"the log-probability of the token {token.text!r} is NaN."
                )
    return "No log-probability is NaN."


def check_not_empty(probes: list[Probe]) -> str:
    if not any(probe.reply.strip() for probe in probes):
        raise ContentCheckFailed(
            f"Content check `not empty` failed: no reply to {len(probes)} prompts has any text. {_shown(probes[0])}",
            hint="A model that only ends, or only writes special tokens or blanks, has often lost its training's template.",
        )
    return _shown(next(probe for probe in probes if probe.reply.strip()))


def check_not_constant(probes: list[Probe]) -> str:
    said = {token.text for probe in probes for token in probe.tokens}
    if len(said) == 1 and all(len(probe.tokens) > 1 for probe in probes):
        raise ContentCheckFailed(
            f"Content check `not constant` failed: every reply to {len(probes)} different prompts repeats the token {min(said)!r}. {_shown(probes[0])}",
            hint="The weights are damaged, or cast to a type that does not hold them: look at dtype and at the saved checkpoint.",
        )
    return f"{len(said)} different tokens were written."


REPLY_CHECKS = {
    "answers": check_answers,
    "numbers": check_numbers,
    "not empty": check_not_empty,
    "not constant": check_not_constant,
}


def no_number(prompt: str, why: str) -> ContentCheckFailed:
    return ContentCheckFailed(
        f"Content check `numbers` failed: for {_cut(prompt)} the model computed NaN: {why}",
        hint="The weights hold NaN, or overflow in their type: --dtype bfloat16 has a wider range than float16.",
    )


def _late(prompt: str, so_far: str, deadline_s: float) -> ContentCheckFailed:
    return ContentCheckFailed(
        f"Content check `ends` failed: after {deadline_s:g} s the reply to {_cut(prompt)} was not complete; so far it is {_cut(so_far)}.",
        hint="Submit again with fewer max_output_tokens, or a smaller model.",
    )


def _shown(probe: Probe) -> str:
    return f"To {_cut(probe.prompt)} it said {_cut(probe.reply)}."


def _cut(text: str) -> str:
    """The end of a prompt or reply, where the evidence is."""
    return repr(text if len(text) <= SHOWN_CHARS else "…" + text[-SHOWN_CHARS:])
