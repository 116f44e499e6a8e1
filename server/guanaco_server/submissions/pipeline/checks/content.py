"""Checks whether a model that is served says something that can be used.

    before it is started   vocabulary       the tokenizer's ids and the special ids are rows of the embedding
                           stopping words   the tokenizer can spell each
    when it is healthy     answers          several short prompts, greedily, each with at least a token
                           numbers          no token's log-probability is NaN
                           not empty        some reply has text
                           not constant     the replies are not one token again and again
                           ends             with the submission's own prompts and parameters, in time
    a reward model         numbers          every score is finite
                           not constant     different replies to one conversation get different scores

A failure names the check and shows the prompt and the reply, or the scores. A server that breaks is ModelServerDied.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from guanaco.errors import (
    ContentCheckFailed,
    CorruptConfig,
    ModelServerDied,
)
from guanaco.submissions import GenerationParams, Level, Stage, Submission, SubmissionKind
from guanaco_server.artifacts.checking.configs import ArtifactConfigs
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.deployments.model_servers.model_server import (
    GeneratedToken,
    Generation,
    ModelServer,
    ModelServerFault,
    NotANumber,
    cache_salt_of,
    reward_score,
)
from guanaco_server.prompts.service import PromptService
from guanaco_server.stress.conversations import Prompted, conversation_prompts
from guanaco_server.submissions.pipeline.checks.places import TakePlace, place_for_check
from guanaco_server.submissions.pipeline.records import PipelineRun, RunRecords
from guanaco_server.tokenization.facts import TokenizerFacts
from guanaco_server.tokenization.service import Tokenizers

PROMPTS = ("Hello", "My name is", "2 + 2 =", "Once upon", "Why?")
PROBE = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=8)  # greedy
OWN_PROBES = 3  # whole replies, side by side
SHOWN_CHARS = 60


CONVERSATION = "You: Hi! How was your day?\nLuna:"
REPLIES = (
    " It was lovely, I walked along the sea.",
    " no",
    " Luna Luna Luna Luna",
    " Why do you ask?",
)
TEXTS = tuple(CONVERSATION + reply for reply in REPLIES)
SPECIAL_IDS = ("bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class Probe:
    """A prompt and the model's reply to it."""

    prompt: str
    reply: str
    finish_reason: str | None
    token_count: int
    tokens: tuple[GeneratedToken, ...]


class ContentChecks:
    """``take_place`` waits for a place at a deployment's engine; ``deadline_s`` is the longest that a whole reply may take."""

    def __init__(
        self,
        records: RunRecords,
        store: ArtifactStore,
        configs: ArtifactConfigs,
        prompts: PromptService,
        tokenizers: Tokenizers,
        model_server: ModelServer,
        take_place: TakePlace,
        deadline_s: float,
    ) -> None:
        self._take_place = take_place
        self._records = records
        self._store = store
        self._configs = configs
        self._prompts = prompts
        self._tokenizers = tokenizers
        self._model_server = model_server
        self._deadline_s = deadline_s

    async def check_files(self, run: PipelineRun, submission: Submission) -> None:
        """Check the artifact's files, before the model is served."""
        assert submission.artifact_key is not None, "the serialize stage is done"
        key = submission.artifact_key
        facts = await self._tokenizers.examine(self._store.pieces(key, "tokenizer.json"))
        config = await self._read_json(key, "config.json")
        generation = await self._read_json(key, "generation_config.json")
        await self._pass(run, "vocabulary", check_sizes(facts, config, generation))
        if submission.kind is SubmissionKind.REWARD:
            return
        words = submission.params.stopping_words
        respelled = await self._tokenizers.respelled(key, words)
        await self._pass(run, "stopping words", check_stopping_words(words, respelled))

    async def check_served(
        self, run: PipelineRun, submission: Submission, endpoint: str, model: str
    ) -> None:
        """Check what a healthy model server, which knows the model by this name, says, or how it scores."""
        if submission.kind is SubmissionKind.CHAT:
            await self._check_replies(run, submission, endpoint, model)
            return
        with await place_for_check(self._take_place, await self._records.deployment_key(run)):
            salt = cache_salt_of(submission.developer)
            found = await check_scores(self._model_server, endpoint, model, salt, self._deadline_s)
        await self._records.log(run, Stage.DEPLOY, *found)

    async def _check_replies(
        self, run: PipelineRun, submission: Submission, endpoint: str, model: str
    ) -> None:
        key = await self._records.deployment_key(run)
        probes = [
            await self._probe(key, endpoint, Generation(model, prompt, PROBE, with_tokens=True))
            for prompt in PROMPTS
        ]
        for name, check in REPLY_CHECKS.items():
            await self._pass(run, name, check(probes))
        await self._check_ends(run, key, submission, endpoint, model)

    async def _check_ends(
        self, run: PipelineRun, key: str, submission: Submission, endpoint: str, model: str
    ) -> None:
        assert submission.artifact_key is not None, "the serialize stage is done"
        params = submission.params
        salt = cache_salt_of(submission.developer)
        prompted = Prompted(submission.formatter, submission.artifact_key, params)
        prompts = await conversation_prompts(self._prompts, prompted, most=OWN_PROBES)
        probes = await asyncio.gather(
            *(
                self._probe(key, endpoint, Generation(model, prompt, params, cache_salt=salt))
                for prompt in prompts
            )
        )
        if any(probe.finish_reason == "stop" for probe in probes):
            await self._pass(run, "ends", "A reply to a real prompt ends by itself.")
            return
        await self._records.log(
            run,
            Stage.DEPLOY,
            f"None of {len(probes)} replies ended by itself within max_output_tokens = {params.max_output_tokens}: no stopping word and no end of text came up. {_format_probe(probes[0])}",
            level=Level.WARNING,
        )

    async def _probe(self, key: str, endpoint: str, generation: Generation) -> Probe:
        """Ask within the submission's fair share of a server that others use too. The wait for a place is no fault of the model."""
        with await place_for_check(self._take_place, key, generation.candidate_count):
            return await self._placed_probe(endpoint, generation)

    async def _placed_probe(self, endpoint: str, generation: Generation) -> Probe:
        text, reason, count, tokens = "", None, 0, list[GeneratedToken]()
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
        """Read a JSON file of the artifact; empty if the artifact does not have it."""
        try:
            return await self._configs.read(artifact_key, path)
        except (FileNotFoundError, CorruptConfig):
            return {}

    async def _pass(self, run: PipelineRun, name: str, found: str) -> None:
        await self._records.log(run, Stage.DEPLOY, f"Content check `{name}` passed: {found}")


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
            f"Content check `not empty` failed: no reply to {len(probes)} prompts has any text. {_format_probe(probes[0])}",
            hint="A model that only ends, or only writes special tokens or blanks, has often lost its training's template.",
        )
    return _format_probe(next(probe for probe in probes if probe.reply.strip()))


def check_not_constant(probes: list[Probe]) -> str:
    written = {token.text for probe in probes for token in probe.tokens}
    if len(written) == 1 and all(len(probe.tokens) > 1 for probe in probes):
        raise ContentCheckFailed(
            f"Content check `not constant` failed: every reply to {len(probes)} different prompts repeats the token {min(written)!r}. {_format_probe(probes[0])}",
            hint="The weights are damaged, or cast to a type that does not hold them: look at dtype and at the saved checkpoint.",
        )
    return f"{len(written)} different tokens were written."


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


def _format_probe(probe: Probe) -> str:
    return f"To {_cut(probe.prompt)} it said {_cut(probe.reply)}."


def _cut(text: str) -> str:
    """Shorten a prompt or reply to its end, where the evidence is."""
    return repr(text if len(text) <= SHOWN_CHARS else "…" + text[-SHOWN_CHARS:])


async def check_scores(
    model_server: ModelServer, endpoint: str, model: str, cache_salt: str, deadline_s: float
) -> list[str]:
    """Return one sentence for each check. Raise ContentCheckFailed, or ModelServerDied if the server cannot score at all."""
    try:
        async with asyncio.timeout(deadline_s):
            logits = await model_server.classify(endpoint, model, TEXTS, cache_salt)
    except NotANumber as fault:
        raise ContentCheckFailed(
            f"Content check `numbers` failed: {fault}",
            hint="The weights hold NaN, or overflow in their type: --dtype bfloat16 has a wider range than float16.",
        ) from None
    except ModelServerFault as fault:
        raise ModelServerDied(f"The model server is up but cannot score: {fault}") from None
    except TimeoutError:
        raise ContentCheckFailed(
            f"Content check `ends` failed: {len(TEXTS)} replies were not scored within {deadline_s:g} s.",
            hint="Submit a smaller reward model.",
        ) from None
    scores = [reward_score(each) for each in logits]
    shown = ", ".join(f"{score:.4g}" for score in scores)
    if len(set(scores)) == 1:
        raise ContentCheckFailed(
            f"Content check `not constant` failed: {len(scores)} different replies all have the score {scores[0]:.4g}.",
            hint="The head was not trained, or its weights were lost when the model was saved.",
        )
    return [
        f"Content check `numbers` passed: the scores of {len(scores)} replies are {shown}.",
        f"Content check `not constant` passed: {len(set(scores))} of the scores are different.",
    ]


def check_sizes(facts: TokenizerFacts, config: dict[str, Any], generation: dict[str, Any]) -> str:
    """Say what was found. Raise ContentCheckFailed when the tokenizer or a special id points past the embedding's rows."""
    rows = _text_config(config).get("vocab_size")
    if type(rows) is not int:
        return "config.json has no vocab_size, so the tokenizer is not compared with it."
    if facts.highest >= rows:
        raise ContentCheckFailed(
            f"Content check `vocabulary` failed: the tokenizer's highest token id is {facts.highest:,} ({facts.highest_token!r}), and the embedding has {rows:,} rows.",
            hint="Call `model.resize_token_embeddings(len(tokenizer))` before saving, or push the tokenizer that the model was trained with.",
        )
    files = {"config.json": _text_config(config), "generation_config.json": generation}
    for file, content in files.items():
        _check_special_ids(file, content, rows)
    return f"The tokenizer's highest id is {facts.highest:,}, and the embedding has {rows:,} rows."


def check_stopping_words(words: Sequence[str], respelled: Sequence[str | None]) -> str:
    """Say what was found. Raise ContentCheckFailed for a word that no sequence of tokens spells, and so has become another text."""
    for word, text in zip(words, respelled, strict=True):
        if text is not None:
            raise ContentCheckFailed(
                f"Content check `stopping words` failed: the tokenizer cannot spell the stopping word {word!r}; it makes {text!r} of it, so the word would never end a reply.",
                hint="Submit again with stopping words that the model can write.",
            )
    if not words:
        return "The submission has no stopping words."
    if len(words) == 1:
        return "The tokenizer can spell the stopping word."
    return f"The tokenizer can spell all {len(words)} stopping words."


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the text part of a multimodal model's config, or the whole config."""
    nested = config.get("text_config")
    return nested if "vocab_size" not in config and isinstance(nested, dict) else config


def _check_special_ids(file: str, content: dict[str, Any], rows: int) -> None:
    for name in SPECIAL_IDS:
        ids = content.get(name)
        for special in ids if isinstance(ids, list) else [ids]:
            if type(special) is int and not 0 <= special < rows:
                raise ContentCheckFailed(
                    f"Content check `vocabulary` failed: {name} in {file} is {special:,}, and the embedding has {rows:,} rows.",
                    hint=f"Put the tokenizer's own id into {file}.",
                )
