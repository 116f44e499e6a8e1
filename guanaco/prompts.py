"""Models of what turns a bot and a conversation into a prompt: five templates, the model's own chat template, a prompt file, or a template in Prompt Poet's form.

A formatter's template is literal text with the fields ``{memory}``, ``{prompt}``, ``{message}``, ``{bot_name}``
and ``{user_name}``. It is parsed once and joined, never given to ``str.format``, so that a stranger's
template can reach no attribute, index or conversion; ``{{`` and ``}}`` stand for braces.

A prompt file has named parts, each with Jinja content, a role and a truncation priority:

    parts:
      - name: persona
        role: system
        content: "{{ bot_name }}'s persona: {{ memory }}\\n"
      - name: chat
        each: turn                      # once for every turn of the conversation
        truncation_priority: 1
        content: "{{ name }}: {{ message }}\\n"
      - name: reply
        content: "{{ bot_name }}:"

The part of the highest priority is cut first; one without a priority, or with 0, never is.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from guanaco.contract import is_tolerant
from guanaco.errors import InvalidFormatter
from guanaco.forms import OneLine

FIELDS = frozenset({"memory", "prompt", "message", "bot_name", "user_name"})
MAX_TEMPLATE_CHARS = 4_096
MAX_PARTS = 32
MAX_CONTENT_CHARS = 16_384
MAX_POET_CHARS = 65_536
MAX_POET_BYTES = 131_072
FunctionName = Annotated[str, StringConstraints(pattern="^[a-z][a-z0-9_]{0,63}$")]
PromptRole = Literal["system", "user", "assistant"]

Piece = tuple[str, str | None]  # literal text, then the field that follows it


@lru_cache(maxsize=4096)
def parse_template(template: str) -> tuple[Piece, ...]:
    """Return the template's literal texts and fields; InvalidFormatter for anything but plain known fields."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidFormatter(
            f"The template {template!r} is broken: {error}.",
            hint="Write {{ and }} for literal braces.",
        ) from None
    pieces: list[Piece] = []
    for literal, field, spec, conversion in parsed:
        if field is not None and (field not in FIELDS or spec or conversion):
            raise InvalidFormatter(
                f"The template {template!r} holds {{{field}}}, which is not one of its fields.",
                hint="The fields are " + ", ".join(f"{{{name}}}" for name in sorted(FIELDS)) + ".",
            )
        pieces.append((literal, field))
    return tuple(pieces)


def fill(template: str, **values: str) -> str:
    """Return the template with its fields replaced; a field without a value stays empty."""
    return "".join(
        literal + (values.get(field, "") if field is not None else "")
        for literal, field in parse_template(template)
    )


def _checked(template: str) -> str:
    try:
        parse_template(template)
    except InvalidFormatter as error:
        raise ValueError(f"{error.detail} {error.hint}") from None
    return template


Template = Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS), AfterValidator(_checked)]

REQUIRED_FIELDS = {
    "memory_template": "memory",
    "prompt_template": "prompt",
    "bot_template": "message",
    "user_template": "message",
}


class PromptFormatter(BaseModel):
    """The default is Pygmalion's, which the original platform started with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["templates"] = "templates"
    memory_template: Template = "{bot_name}'s Persona: {memory}\n####\n"
    prompt_template: Template = "{prompt}\n<START>\n"
    bot_template: Template = "{bot_name}: {message}\n"
    user_template: Template = "{user_name}: {message}\n"
    response_template: Template = "{bot_name}:"

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        for name, field in REQUIRED_FIELDS.items():
            fields = {piece[1] for piece in parse_template(getattr(self, name))}
            if field not in fields:
                raise ValueError(f"{name} must contain {{{field}}}.")
        return self


class ChatTemplatePrompt(BaseModel):
    """The chat template that the model's repo brings: persona and scenario are the system message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["chat_template"] = "chat_template"


class PromptPart(BaseModel):
    """``each: turn`` makes one piece of every turn; its role is the sender's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine
    content: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTENT_CHARS)] = Field(
        description="Jinja, of bot_name, user_name, memory and prompt; for each turn also of name, message and sender."
    )
    role: PromptRole | None = None
    truncation_priority: int = Field(
        default=0, ge=0, le=100, description="The highest is cut first; 0 is never cut."
    )
    each: Literal["turn"] | None = None


class PromptFile(BaseModel):
    """``render`` says what becomes of the parts: text, or messages for the model's own chat template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["file"] = "file"
    render: Literal["text", "chat_template"] = "text"
    parts: tuple[PromptPart, ...] = Field(min_length=1, max_length=MAX_PARTS)

    @model_validator(mode="after")
    def _has_sound_parts(self) -> Self:
        name, count = Counter(part.name for part in self.parts).most_common(1)[0]
        if count > 1:
            raise ValueError(f"There are {count} parts of the name {name!r}.")
        if sum(part.each is not None for part in self.parts) != 1:
            raise ValueError("Exactly one part must have each: turn, for the conversation.")
        for part in self.parts:
            _check_role(part, self.render)
        return self

    @property
    def turn_part(self) -> PromptPart:
        return next(part for part in self.parts if part.each is not None)


def _check_role(part: PromptPart, render: str) -> None:
    if part.each is not None and part.role is not None:
        raise ValueError(f"The part {part.name!r} has a role, but a turn's role is its sender's.")
    if render == "chat_template" and part.each is None and part.role is None:
        raise ValueError(f"The part {part.name!r} needs a role, for the model's chat template.")


class PoetPrompt(BaseModel):
    """A template in Prompt Poet's form: Jinja that makes YAML, a list of parts. docs/prompts.md lists its variables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["poet"] = "poet"
    template: Annotated[str, StringConstraints(min_length=1, max_length=MAX_POET_CHARS)]
    render: Literal["text", "chat_template"] = "text"
    data: dict[str, JsonValue] = Field(
        default={},
        description="Variables of the app's own; they come before ours of the same name.",
    )
    functions: dict[FunctionName, JsonValue] = Field(
        default={},
        description="Functions that the template calls, as data: what they return, or a mapping of their first argument.",
    )
    sections: dict[str, Annotated[str, StringConstraints(max_length=MAX_POET_CHARS)]] = Field(
        default={}, description="Templates that it includes, by the name in `include`."
    )

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        size = len(self.model_dump_json())
        if size > MAX_POET_BYTES:
            raise ValueError(f"The template with its data is over {MAX_POET_BYTES:,} characters.")
        return self

    @cached_property
    def _digest(self) -> int:
        return hash(self.model_dump_json())

    def __hash__(self) -> int:
        return self._digest


class UnknownPrompt(BaseModel):
    """A prompt that a newer version has stored: of another kind, or of a known one with what this version cannot render."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str

    @property
    def is_unknown(self) -> bool:
        return True


def _kind_of(value: Any) -> Any:
    """A prompt without a kind is a formatter: it was stored before there were others."""
    if isinstance(value, dict):
        return value.get("kind", "templates")
    return getattr(value, "kind", None)


_KnownPrompt = Annotated[
    Annotated[PromptFormatter, Tag("templates")]
    | Annotated[ChatTemplatePrompt, Tag("chat_template")]
    | Annotated[PromptFile, Tag("file")]
    | Annotated[PoetPrompt, Tag("poet")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_kind",
        custom_error_message="The kind of a prompt is templates, chat_template, file or poet",
    ),
]


class _KnownWhenAsked:
    """Requests and OpenAPI know the four kinds; a Reader makes an UnknownPrompt of any other."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        known = handler.generate_schema(_KnownPrompt)
        return core_schema.with_info_wrap_validator_function(
            self._validate,
            known,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                self._serialize, schema=known
            ),
        )

    def _validate(
        self, value: Any, validate: Callable[[Any], Any], info: ValidationInfo
    ) -> PromptFormatter | ChatTemplatePrompt | PromptFile | PoetPrompt | UnknownPrompt:
        if isinstance(value, UnknownPrompt):
            return value
        try:
            return cast(PromptFormatter, validate(value))
        except ValidationError:
            if is_tolerant(info) and isinstance(value, dict) and isinstance(_kind_of(value), str):
                return UnknownPrompt.model_validate({**value, "kind": _kind_of(value)})
            raise

    def _serialize(self, value: Any, serialize: Callable[[Any], Any]) -> Any:
        return value.model_dump() if isinstance(value, UnknownPrompt) else serialize(value)


Prompt = Annotated[
    PromptFormatter | ChatTemplatePrompt | PromptFile | PoetPrompt | UnknownPrompt,
    _KnownWhenAsked(),
]

CHAT_TEMPLATE = "chat-template"  # as `--formatter` names it


PRESETS: dict[str, PromptFormatter] = {
    "pygmalion": PromptFormatter(),
    "vicuna": PromptFormatter(
        memory_template="### Instruction:\n{memory}\n",
        prompt_template="### Input:\n{prompt}\n",
        bot_template="{bot_name}: {message}\n",
        user_template="{user_name}: {message}\n",
        response_template="### Response:\n{bot_name}:",
    ),
    "chatml": PromptFormatter(
        memory_template="<|im_start|>system\n{memory}<|im_end|>\n",
        prompt_template="<|im_start|>user\n{prompt}<|im_end|>\n",
        bot_template="<|im_start|>assistant\n{bot_name}: {message}<|im_end|>\n",
        user_template="<|im_start|>user\n{user_name}: {message}<|im_end|>\n",
        response_template="<|im_start|>assistant\n{bot_name}:",
    ),
}
