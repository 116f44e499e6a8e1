"""vLLM's completions API: requests written, whole answers read. Whatever an answer should not be is a ModelServerFault."""

from __future__ import annotations

import json
import math
from typing import Any

from guanaco_server.deployments.model_server import (
    Chunk,
    Generation,
    ModelServerFault,
    NotANumber,
)

NAN_REFUSAL = (
    "Out of range float"  # what vLLM 0.32 answers, with 400, when an answer would hold NaN
)
CHOSEN_ONLY = 0  # `logprobs`: of the chosen tokens, and of no others


def candidates(generation: Generation) -> int:
    """How many replies to choose from; greedy ones would all be the same, and vLLM refuses them."""
    return generation.params.best_of if generation.params.temperature > 0 else 1


def request_body(generation: Generation) -> dict[str, Any]:
    params = generation.params
    body: dict[str, Any] = {
        "model": generation.model,
        "prompt": generation.prompt,
        "max_tokens": params.max_output_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,  # vLLM's "every token"
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": params.stopping_words,
    }
    if (count := candidates(generation)) > 1:
        return {**body, "n": count, "logprobs": CHOSEN_ONLY}
    if generation.with_tokens:
        body["logprobs"] = CHOSEN_ONLY
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def score_body(model: str, text: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": text,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": CHOSEN_ONLY,
    }


def read_best(body: bytes) -> Chunk:
    """The candidate with the highest mean token log-probability, as one chunk. Counts are of all candidates."""
    answer = _parse(body)
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(c, dict) for c in choices)
    ):
        raise nonsense(answer)
    best = max(choices, key=_mean_logprob)
    return Chunk((_text(best),), best.get("finish_reason") or "stop", *_token_counts(answer))


def read_prompt_logprobs(body: bytes) -> tuple[float, ...]:
    """Of each prompt token but the first, which has nothing before it."""
    answer = _parse(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise nonsense(answer)
    match _first_choice(answer).get("prompt_logprobs"):
        case [None, *scores] if scores:
            return tuple(_only_logprob(score) for score in scores)
    raise nonsense(answer)


def refusal(status: int, body: bytes) -> ModelServerFault:
    """For an answer with an error status."""
    try:
        why = error_text(json.loads(body))
    except ValueError:
        why = None
    kind = NotANumber if why and NAN_REFUSAL in why else ModelServerFault
    return kind(f"The model server answered with status {status}{f': {why}' if why else '.'}")


def _parse(data: str | bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        raise nonsense(data) from None
    if not isinstance(parsed, dict):
        raise nonsense(parsed)
    if why := error_text(parsed):
        raise ModelServerFault(f"The model server failed: {why}")
    return parsed


def error_text(answer: Any) -> str | None:
    if not isinstance(answer, dict) or not (error := answer.get("error")):
        return None
    return str(error.get("message") if isinstance(error, dict) else error)[:300]


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event["choices"]
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise nonsense(event)
    return choices[0]


def _text(choice: dict[str, Any]) -> str:
    text = choice.get("text")
    if not isinstance(text, str):
        raise nonsense(choice)
    return text


def _only_logprob(score: Any) -> float:
    values = list(score.values()) if isinstance(score, dict) else []
    match values:
        case [{"logprob": logprob}]:
            return _number(logprob)
    raise nonsense(score)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _token_counts(answer: dict[str, Any]) -> tuple[int, int]:
    usage = answer.get("usage")
    counts = (
        [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if isinstance(usage, dict)
        else [None]
    )
    match counts:
        case [int(prompt_tokens), int(completion_tokens)]:
            return prompt_tokens, completion_tokens
        case _:
            raise ModelServerFault("The model server sent no token counts.")


def _mean_logprob(choice: dict[str, Any]) -> float:
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    values = (
        [value for value in tokens if isinstance(value, (int, float))]
        if isinstance(tokens, list)
        else []
    )
    return sum(values) / len(values) if values else -math.inf


def nonsense(said: object) -> ModelServerFault:
    return ModelServerFault(
        f"The model server sent something that is no completion: {str(said)[:80]!r}."
    )
