"""Models of the requests to OpenAI's completion APIs, as far as a chat model can answer them; the rest is refused, not ignored.

A null is as good as nothing, and so is an empty list or object of what is refused: the official clients may send them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from guanaco.chat import MAX_MESSAGE_CHARS, Sender, Turn
from guanaco.forms import OneLine, Slug
from guanaco.parameters import ParamChanges, ParameterInfo, parameters

MAX_MESSAGES = 1_000
SEEDS = 2**63  # vLLM's are 64 bits, signed


def _text_of_parts(content: Any) -> Any:
    """A message's content may be a list of text parts."""
    if not isinstance(content, list):
        return content
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


def _none_if_empty(text: Any) -> Any:
    return text or None


def _without_nulls(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if value is not None}


Content = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS), BeforeValidator(_text_of_parts)]


NOTHING: tuple[Any, ...] = (None, [], {})


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {name: given[name] for name in given if name in cls.model_fields}
        unknown = [name for name in given if name not in known and given[name] not in NOTHING]
        if unknown:
            names = ", ".join(name[:40] for name in unknown[:5])
            raise ValueError(f"these models cannot do {names}: leave it out")
        return _without_nulls(known)


class ChatMessage(_Fields):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = ""


class StreamOptions(_Fields):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextFormat(_Fields):
    type: Literal["text"]


class Metadata(BaseModel):
    """Ours: who speaks, and whether the conversation is recorded. ``consent`` "true" records it, so that it can be rated.

    ``competition`` assigns the submission of a recorded conversation, and its rating counts there.

    Whatever else it holds is the caller's own.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    bot_name: OneLine = "Assistant"
    user_name: OneLine = "User"
    consent: Literal["true", "false"] = "false"
    conversation_id: str | None = Field(default=None, max_length=64)
    competition: Slug | None = None

    _drop_nulls = model_validator(mode="before")(_without_nulls)

    @model_validator(mode="after")
    def _continues_what_is_recorded(self) -> Self:
        if self.conversation_id is not None and self.consent != "true":
            raise ValueError('conversation_id continues what is recorded: it needs consent "true"')
        if self.competition is not None and self.consent != "true":
            raise ValueError(
                'only what is recorded takes part in a competition: it needs consent "true"'
            )
        return self


PARAMETERS = tuple(one for one in parameters() if one.use.openai)
"""The generation parameters that OpenAI's API has, under ``use.openai``."""


def _parameter_fields() -> dict[str, Any]:
    fields = {}
    for one in PARAMETERS:
        kind, field = one.optional(without="le" if one.use.is_budget else "")
        if one.is_list:
            kind = Annotated[kind, BeforeValidator(_one_or_many)]
        fields[str(one.use.openai)] = (kind, field)
    return fields


if TYPE_CHECKING:
    _Parameters = _Fields
else:
    _Parameters = create_model("_Parameters", __base__=_Fields, **_parameter_fields())


class _Request(_Parameters):
    """``service_tier``, ``safety_identifier`` and ``prompt_cache_key`` concern OpenAI's own service, and change nothing here."""

    model: str = Field(max_length=128)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: Annotated[str | None, BeforeValidator(_none_if_empty)] = Field(
        default=None, max_length=128
    )
    seed: int | None = Field(default=None, ge=-SEEDS, lt=SEEDS)
    n: Literal[1] = 1

    def changes(self) -> ParamChanges:
        """Return the generation parameters that the request sets. A budget beyond what is allowed is lowered to that."""
        given: dict[str, Any] = {}
        for one in PARAMETERS:
            value = self._given(one)
            most = one.bound("le") if one.use.is_budget else None
            given[one.name] = min(value, most) if value is not None and most else value
        return ParamChanges.model_validate(given)

    def _given(self, one: ParameterInfo) -> Any:
        return getattr(self, str(one.use.openai))


class ChatCompletionRequest(_Request):
    """``max_completion_tokens`` is OpenAI's newer name of ``max_tokens``. Without tools, ``parallel_tool_calls`` says nothing."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    metadata: Metadata = Metadata()
    logprobs: Literal[False] = False
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] = []
    tool_choice: Literal["none"] | None = None
    function_call: Literal["none"] | None = None
    parallel_tool_calls: bool | None = None
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _can_be_a_conversation(self) -> Self:
        if len(self.persona) > MAX_MESSAGE_CHARS:
            raise ValueError(
                f"the system messages have {len(self.persona):,} characters together; {MAX_MESSAGE_CHARS:,} are allowed"
            )
        last = self.turns[-1] if self.turns else None
        if last is None or last.sender is not Sender.USER or not last.content.strip():
            raise ValueError("the last message must be the user's, and more than blanks")
        return self

    def _given(self, one: ParameterInfo) -> Any:
        newer = self.max_completion_tokens if one.use.openai == "max_tokens" else None
        return newer or super()._given(one)

    @cached_property
    def persona(self) -> str:
        """The system messages."""
        return "\n".join(m.content for m in self.messages if m.role in ("system", "developer"))

    @cached_property
    def turns(self) -> list[Turn]:
        """Require at least one turn, the last of which is the user's."""
        return [
            Turn(sender=Sender.USER if m.role == "user" else Sender.BOT, content=m.content)
            for m in self.messages
            if m.role in ("user", "assistant")
        ]


class CompletionRequest(_Request):
    prompt: Annotated[str, BeforeValidator(_only_prompt)] = Field(min_length=1, max_length=200_000)
    echo: Literal[False] = False
    best_of: Literal[1] = 1

    def changes(self) -> ParamChanges:
        """A completion has no conversation for a reward model: it is the only candidate."""
        return super().changes().model_copy(update={"best_of": 1})
