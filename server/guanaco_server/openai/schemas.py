"""What OpenAI's completion APIs take, as far as a chat model of ours can do it; what it cannot is refused, not ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.submissions import StoppingWord

MAX_MESSAGES = 1_000


def _text_of_parts(content: Any) -> Any:
    """A message's content may be a list of text parts."""
    if not isinstance(content, list):
        return "" if content is None else content
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("only text can be sent to these models")
    return "\n".join(str(text) for text in texts)


def _one_or_many(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _only_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list) and len(prompt) == 1:
        return prompt[0]
    return prompt


Content = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS), BeforeValidator(_text_of_parts)]


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    include_usage: bool = False


class Metadata(BaseModel):
    """Ours: who speaks, and whether the conversation is recorded. ``consent`` "true" records it, so that it can be rated."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    bot_name: str = Field(default="Assistant", min_length=1, max_length=64)
    user_name: str = Field(default="User", min_length=1, max_length=64)
    consent: Literal["true", "false"] = "false"
    conversation_id: str | None = Field(default=None, max_length=64)


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(max_length=128)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str | None = Field(default=None, max_length=128)
    max_tokens: int | None = Field(default=None, ge=1, le=4_096)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: Annotated[list[StoppingWord] | None, BeforeValidator(_one_or_many)] = Field(
        default=None, max_length=16
    )
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None


class ChatCompletionRequest(_Request):
    """``max_completion_tokens`` is OpenAI's newer name of ``max_tokens``."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=4_096)
    metadata: Metadata = Metadata()
    tools: Literal[None] = None
    functions: Literal[None] = None


class CompletionRequest(_Request):
    prompt: Annotated[str, BeforeValidator(_only_prompt)] = Field(max_length=200_000)
    echo: Literal[False] | None = None
    suffix: Literal[None] = None
    best_of: Literal[1] | None = None
