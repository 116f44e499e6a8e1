"""Models of what OpenAI's APIs answer: models, completions, the chunks of a stream, errors."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class OpenAiModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds.")
    owned_by: str = Field(description="The developer.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAiModel]


class ErrorObject(BaseModel):
    message: str = Field(description="The fault, and what to do next.")
    type: str = Field(
        description="invalid_request_error, requests (too many of them) or server_error."
    )
    param: str | None
    code: str = Field(
        description="invalid_api_key, model_not_found, rate_limit_exceeded; else the error's code, the `error` of our own form."
    )


class OpenAiError(BaseModel):
    """OpenAI's form of an error."""

    error: ErrorObject


class TokenUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Recorded(BaseModel):
    """The recorded conversation and message, which a rating needs."""

    conversation_id: str
    message_id: str | None


class _Answer(BaseModel):
    id: str
    created: int = Field(description="Unix seconds.")
    model: str = Field(
        description="The submission that answers, also where `guanaco/auto` was asked."
    )


class _Choice(BaseModel):
    index: Literal[0]
    logprobs: None
    finish_reason: str | None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Choice):
    message: AssistantMessage


class ChatCompletion(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: TokenUsage
    guanaco: Recorded | None = None


class TextChoice(_Choice):
    text: str


class Completion(_Answer):
    """A completion, and a chunk of one that is streamed."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: TokenUsage | None = None


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(_Choice):
    delta: Delta


class ChatCompletionChunk(_Answer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: TokenUsage | None = None
    guanaco: Recorded | None = None
