"""vLLM's HTTP API: requests written, answers and streams read, metrics read.

Any answer that is not what it should be is a ModelServerFault. A streamed reply is decoded as it arrives: what is in
one read of the socket becomes one Chunk.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any

import msgspec

from guanaco.parameters import sampling_fields
from guanaco_server.deployments.model_servers.model_server import (
    Candidate,
    Candidates,
    Chunk,
    GeneratedToken,
    Generation,
    HoldsAnotherModel,
    ModelServerFault,
    NotANumber,
    RequestRefused,
    ServerLoad,
)
from guanaco_server.deployments.versions import ARTIFACT_MARK
from guanaco_server.observability.redaction import Redaction

NAN_REFUSAL = (
    "Out of range float"  # what vLLM 0.32 answers, with 400, when an answer would hold NaN
)
REFUSALS = (400, 413, 422)
OTHER_MODEL = 409  # engine/control.py's
MAX_TOKENS = 2**31 - 1  # what the database holds; no reply has as many
FINISH_REASON = r"^[A-Za-z_]{0,32}$"
CHOSEN_ONLY = 0  # `logprobs`: of the chosen tokens, and of no others


def name_of(model: str) -> str:
    """Return the name by which vLLM knows the model that a request expects."""
    return model.partition(ARTIFACT_MARK)[0]


def artifact_of(model: str) -> str:
    """Return the artifact that a request expects; empty for any."""
    return model.partition(ARTIFACT_MARK)[2]


def request_body(generation: Generation) -> dict[str, Any]:
    body = _sampling(generation)
    if generation.with_tokens:
        body["logprobs"] = CHOSEN_ONLY
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def _sampling(generation: Generation) -> dict[str, Any]:
    seed = {} if generation.seed is None else {"seed": generation.seed}
    return {
        "model": name_of(generation.model),
        "prompt": generation.prompt,
        **sampling_fields(generation.params),
        **seed,
        **_salted(generation.cache_salt),
    }


def _salted(cache_salt: str) -> dict[str, str]:
    """vLLM refuses an empty one."""
    return {"cache_salt": cache_salt} if cache_salt else {}


def candidates_body(generation: Generation) -> dict[str, Any]:
    """Ask for several candidates. vLLM refuses several greedy ones, which would all be the same."""
    return {**_sampling(generation), "n": generation.candidate_count, "logprobs": CHOSEN_ONLY}


def score_body(model: str, text: str) -> dict[str, Any]:
    return {
        "model": name_of(model),
        "prompt": text,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": CHOSEN_ONLY,
    }


def classify_body(model: str, texts: Sequence[str], cache_salt: str) -> dict[str, Any]:
    return {
        **_salted(cache_salt),
        "model": name_of(model),
        "input": list(texts),
        "use_activation": False,  # the logits themselves
        "truncate_prompt_tokens": -1,  # to --max-model-len
        "truncation_side": "left",
    }


def read_candidates(body: bytes) -> Candidates:
    answer = _parse(body)
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(c, dict) for c in choices)
    ):
        raise malformed_answer(answer)
    replies = (Candidate(_text(c), _finish_reason(c), _mean_logprob(c)) for c in choices)
    return Candidates(tuple(replies), *_token_counts(answer))


def read_logits(body: bytes, count: int) -> tuple[tuple[float, ...], ...]:
    """Read the logits of ``count`` texts, in their order; NotANumber if one is not finite."""
    match _parse(body).get("data"):
        case [*items] if len(items) == count:
            return tuple(_logits(item, index) for index, item in enumerate(items))
        case data:
            raise malformed_answer(data, "list of scores")


def read_prompt_logprobs(body: bytes) -> tuple[float, ...]:
    """Read the log-probability of each prompt token but the first."""
    answer = _parse(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise malformed_answer(answer)
    match _first_choice(answer).get("prompt_logprobs"):
        case [None, *scores] if scores:
            return tuple(_only_logprob(score) for score in scores)
    raise malformed_answer(answer)


def refusal(status: int, body: bytes) -> ModelServerFault:
    """Return the fault for an answer with an error status."""
    why = refusal_text(body)
    kind = RequestRefused if status in REFUSALS else ModelServerFault
    if status == OTHER_MODEL:
        kind = HoldsAnotherModel
    if why and NAN_REFUSAL in why:
        kind = NotANumber
    return kind(f"The model server answered with status {status}{f': {why}' if why else '.'}")


def refusal_text(body: bytes) -> str | None:
    """Return what an answer with an error status says; None if that is nothing."""
    try:
        return error_text(json.loads(body))
    except UNREADABLE:
        return None


def _parse(data: str | bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except UNREADABLE:
        raise malformed_answer(data) from None
    if not isinstance(parsed, dict):
        raise malformed_answer(parsed)
    if why := error_text(parsed):
        raise ModelServerFault(f"The model server failed: {why}")
    return parsed


def error_text(answer: Any) -> str | None:
    """Return what the server says of an error, without what a developer must not read."""
    if not isinstance(answer, dict) or not (error := answer.get("error")):
        return None
    text = str(error.get("message") if isinstance(error, dict) else error)[:MAX_ERROR_CHARS]
    return _redaction.clean_output(text)


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event["choices"]
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise malformed_answer(event)
    return choices[0]


def _text(choice: dict[str, Any]) -> str:
    text = choice.get("text")
    if not isinstance(text, str) or not _is_unicode(text):
        raise malformed_answer(choice)
    return text


def _is_unicode(text: str) -> bool:
    """Half of a surrogate pair, which JSON may hold, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finish_reason(choice: dict[str, Any]) -> str:
    reason = choice.get("finish_reason") or "stop"
    if not isinstance(reason, str) or not re.search(FINISH_REASON, reason):
        raise malformed_answer(choice)
    return reason


def _only_logprob(score: Any) -> float:
    values = list(score.values()) if isinstance(score, dict) else []
    match values:
        case [{"logprob": logprob}]:
            return _number(logprob)
    raise malformed_answer(score)


def _logits(item: Any, index: int) -> tuple[float, ...]:
    match item:
        case {"index": at, "probs": [_, *_] as values} if at == index:
            logits = tuple(_number(value) for value in values)
        case _:
            raise malformed_answer(item, "score")
    if not all(map(math.isfinite, logits)):
        raise NotANumber("The model server computed a score that is no number.")
    return logits


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _token_counts(answer: dict[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of the prompt, of the replies, and those of the prompt that the prefix cache had."""
    try:
        usage = msgspec.convert(answer.get("usage"), _Usage)
    except msgspec.ValidationError:
        raise ModelServerFault("The model server sent no token counts.") from None
    return usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens


def _mean_logprob(choice: dict[str, Any]) -> float:
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    values = (
        [value for value in tokens if isinstance(value, (int, float))]
        if isinstance(tokens, list)
        else []
    )
    return sum(values) / len(values) if values else -math.inf


def malformed_answer(received: object, what: str = "completion") -> ModelServerFault:
    return ModelServerFault(
        f"The model server sent something that is no {what}: {str(received)[:80]!r}."
    )


MAX_EVENT_BYTES = 1_048_576
SPARE_PIECES = 64  # over max_output_tokens: the ends, and what a tokenizer holds back


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _ChoicePart(msgspec.Struct, gc=False):
    text: str
    finish_reason: Annotated[str, msgspec.Meta(pattern=FINISH_REASON)] | None = None
    logprobs: dict[str, Any] | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Return how many of the prompt's tokens the prefix cache had; no more than the prompt has."""
        details = self.prompt_tokens_details
        return min(self.prompt_tokens, details.cached_tokens or 0) if details else 0


class _Event(msgspec.Struct, gc=False):
    choices: list[_ChoicePart] = []
    usage: _Usage | None = None
    error: Any = None


MAX_ERROR_CHARS = 300
_redaction = Redaction(())

# Exceptions of a decoder on a server's words: msgspec's errors are ValueErrors, nested brackets exhaust the stack.
UNREADABLE = (ValueError, RecursionError)

_decode = msgspec.json.Decoder(_Event).decode
_decode_lines = msgspec.json.Decoder(_Event).decode_lines


class StreamReader:
    """Reads a streamed reply. The last chunk waits for the token counts, which vLLM sends after the text; without them the pieces are counted."""

    def __init__(self, max_output_tokens: int) -> None:
        self._max_pieces = max_output_tokens + SPARE_PIECES
        self._rest = b""
        self._pieces = 0
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> Chunk | None:
        """Return what is complete now, None if nothing is."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise malformed_answer(self._rest)
        if not newline:
            return None
        texts: list[str] = []
        tokens: list[GeneratedToken] = []
        events, is_done = _decode_lines_of(whole)
        for event in events:
            if event.choices:
                choice = event.choices[0]
                if choice.text:
                    texts.append(choice.text)
                if choice.finish_reason:
                    self._finish_reason = choice.finish_reason
                if choice.logprobs:
                    tokens.extend(_tokens(choice.logprobs))
            if event.usage is not None:
                self._usage = event.usage
        if is_done or (self._usage is not None and self._finish_reason is not None):
            return self._end(texts, tokens)
        self._pieces += len(texts)
        if self._pieces > self._max_pieces:
            raise ModelServerFault("The model server goes on beyond the tokens it was asked for.")
        return Chunk(tuple(texts), tokens=tuple(tokens)) if texts or tokens else None

    def broken_off(self) -> ModelServerFault:
        """Return the fault of a server that stopped before the reply was complete."""
        return ModelServerFault("The model server broke off before the reply was complete.")

    def _end(self, texts: list[str], tokens: list[GeneratedToken]) -> Chunk:
        if self._finish_reason is None:
            raise self.broken_off()
        usage = self._usage or _Usage(0, self._pieces + len(texts))
        return Chunk(
            tuple(texts),
            self._finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
            tuple(tokens),
            cached_tokens=usage.cached_tokens,
        )


def _decode_lines_of(whole: bytes) -> tuple[list[_Event], bool]:
    """Return the events of whole lines, and whether the last one was among them. What vLLM sends is decoded at once, anything else line by line."""
    lines, done, _ = (b"\n" + whole).partition(b"\ndata: [DONE]")
    try:
        events, is_done = _decode_lines(lines.replace(b"\ndata: ", b"\n")), bool(done)
    except UNREADABLE:
        data = [line[5:].strip() for line in whole.split(b"\n") if line[:5] == b"data:"]
        is_done = b"[DONE]" in data
        events = [_decode_event(one) for one in takewhile(lambda one: one != b"[DONE]", data)]
    for event in events:
        if event.error:
            why = error_text({"error": event.error})
            raise ModelServerFault(f"The model server failed: {why}")
    return events, is_done


def _decode_event(data: bytes) -> _Event:
    try:
        return _decode(data)
    except UNREADABLE:
        pass
    try:
        decoded = msgspec.json.decode(data)
    except UNREADABLE:
        raise malformed_answer(data) from None
    why = error_text(decoded)
    raise ModelServerFault(f"The model server failed: {why}") if why else malformed_answer(decoded)


def _tokens(logprobs: dict[str, Any]) -> list[GeneratedToken]:
    """In a stream vLLM writes NaN as null."""
    match logprobs:
        case {"tokens": list(texts), "token_logprobs": list(values)}:
            pairs = zip(texts, values, strict=False)
            return [
                GeneratedToken(str(text), math.nan if value is None else value)
                for text, value in pairs
            ]
    return []


RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_CACHE = "vllm:kv_cache_usage_perc"  # a share from 0 to 1, whatever its name says
METRIC_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")


def read_load(text: str) -> ServerLoad:
    """Read the load from metrics: requests summed over the engines of a data-parallel server, the fullest one's cache. ModelServerFault if a gauge is missing or no number."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        match = METRIC_LINE.fullmatch(line)
        if match and match["name"] in (RUNNING, WAITING, KV_CACHE):
            found.setdefault(match["name"], []).append(_gauge(match["value"]))
    if RUNNING not in found or WAITING not in found:
        raise ModelServerFault("The model server's metrics have no numbers of its requests.")
    return ServerLoad(
        running=int(sum(found[RUNNING])),
        waiting=int(sum(found[WAITING])),
        kv_cache_usage=min(1.0, max(found.get(KV_CACHE, (0.0,)))),
    )


def _gauge(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ModelServerFault(f"The model server's metrics say {text[:20]!r} requests.")
    return value
