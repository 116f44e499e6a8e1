"""The generation parameters. This is the only list of them: to add one, add a field to ``GenerationParams``.

A field's type, bounds, default and description are used everywhere:

    GenerationParams ─┬─ guanaco submit           one option each
                      ├─ the web form             one field each
                      ├─ ParamChanges             what a variant of an experiment may change
                      ├─ the OpenAI API           those that have a name there, for one request
                      └─ the model server         those that are sent to vLLM

A ``Parameter`` in the field's annotation says where its use differs from a plain field, which is sent to the model
server under its own name, is not in OpenAI's API, and may be changed to any allowed value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, field_validator
from pydantic.fields import FieldInfo

MOST_STOPPING_WORDS = 16  # model servers take as many (engine/serve.py); vLLM by itself 4
StoppingWord = Annotated[str, StringConstraints(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Parameter:
    """Describes how a generation parameter is used beyond a plain field.

    Attributes:
        vllm: Its name in a request to the model server; the field's name otherwise.
        is_sent: Whether the model server is told. The platform itself uses the others.
        zero: What the model server is sent in place of 0.
        openai: Its name in OpenAI's API; None where that API does not have it.
        option: Its option of ``guanaco submit``; the field's name with hyphens otherwise.
        is_budget: Whether it may only be lowered for one conversation or request: the server was sized for it.
    """

    vllm: str | None = None
    is_sent: bool = True
    zero: int | None = None
    openai: str | None = None
    option: str | None = None
    is_budget: bool = False


def _not_a_flag(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("It is a number, not true or false.")
    return value


def _is_zero(value: object) -> bool:
    return value == 0


class GenerationParams(BaseModel):
    """Sampling parameters and the token budget of a turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _refuse_flags = field_validator("*", mode="before")(_not_a_flag)

    temperature: Annotated[float, Parameter(openai="temperature")] = Field(
        default=1.0, ge=0, le=2, description="0 is greedy."
    )
    top_p: Annotated[float, Parameter(openai="top_p")] = Field(default=1.0, gt=0, le=1)
    top_k: Annotated[int, Parameter(zero=-1)] = Field(
        default=40, ge=0, le=1_000, description="0 keeps every token."
    )
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=2)
    presence_penalty: Annotated[float, Parameter(openai="presence_penalty")] = Field(
        default=0.0, ge=-2, le=2
    )
    frequency_penalty: Annotated[float, Parameter(openai="frequency_penalty")] = Field(
        default=0.0, ge=-2, le=2
    )
    stopping_words: Annotated[
        list[StoppingWord], Parameter(vllm="stop", openai="stop", option="--stopping-word")
    ] = Field(default=["\n"], max_length=MOST_STOPPING_WORDS, description="Each ends a reply.")
    max_input_tokens: Annotated[int, Parameter(is_sent=False, is_budget=True)] = Field(
        default=1_024, ge=16, le=131_072
    )
    recall_tokens: Annotated[int, Parameter(is_sent=False)] = Field(
        default=0,
        ge=0,
        le=8_192,
        description="Tokens for earlier messages that no longer fit into the prompt and share words with the newest one; 0 shows none. At most a quarter of max_input_tokens is used.",
        exclude_if=_is_zero,
    )
    summary_tokens: Annotated[int, Parameter(is_sent=False)] = Field(
        default=0,
        ge=0,
        le=2_048,
        description="Tokens for a summary of what was said before, which is written in the background when the conversation outgrows its prompt; 0 shows none. At most an eighth of the room beside the persona is used.",
        exclude_if=_is_zero,
    )
    max_output_tokens: Annotated[
        int, Parameter(vllm="max_tokens", openai="max_tokens", is_budget=True)
    ] = Field(default=64, ge=1, le=4_096)
    best_of: Annotated[int, Parameter(is_sent=False)] = Field(
        default=1,
        ge=1,
        le=16,
        description="Candidates per reply, of which the reward model picks the one that is sent; without one, it is the one with the highest mean token log-probability.",
    )

    @property
    def candidate_count(self) -> int:
        """The sequences that are generated for one reply: one if the sampling is greedy, as all would be the same."""
        return self.best_of if self.temperature > 0 else 1


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter, as everything outside of the model needs it."""

    name: str
    field: FieldInfo
    use: Parameter

    @property
    def is_list(self) -> bool:
        return get_origin(self.field.annotation) is list

    @property
    def is_number(self) -> bool:
        return self.field.annotation in (int, float)

    @property
    def option(self) -> str:
        return self.use.option or "--" + self.name.replace("_", "-")

    def bound(self, kind: str) -> Any:
        """Return the value of ``ge``, ``gt``, ``le`` or ``lt``; None where there is none."""
        found = (getattr(rule, kind, None) for rule in self.field.metadata)
        return next((value for value in found if value is not None), None)

    @property
    def range(self) -> str:
        """``0 to 2``, or ``Over 0, to 1``; empty where there are no bounds."""
        low, over = self.bound("ge"), self.bound("gt")
        high, under = self.bound("le"), self.bound("lt")
        parts = [
            f"{low:g}" if low is not None else f"Over {over:g}," if over is not None else "",
            f"to {high:.10g}" if high is not None else f"under {under:.10g}" if under else "",
        ]
        return " ".join(part for part in parts if part).rstrip(",")

    def optional(self, without: str = "") -> tuple[Any, FieldInfo]:
        """Type and field of a model in which the parameter may be missing; ``without`` one kind of bound."""
        rules = [rule for rule in self.field.metadata if not hasattr(rule, without)]
        kind: Any = self.field.annotation
        for rule in rules:
            kind = Annotated[kind, rule]
        return kind | None, FieldInfo(default=None, description=self.field.description)


@lru_cache
def parameters(model: type[GenerationParams] = GenerationParams) -> tuple[ParameterInfo, ...]:
    """Every generation parameter, in the order of the model's fields."""
    return tuple(
        ParameterInfo(
            name,
            field,
            next((rule for rule in field.metadata if isinstance(rule, Parameter)), Parameter()),
        )
        for name, field in model.model_fields.items()
    )


def sampling_fields(params: GenerationParams) -> dict[str, Any]:
    """Return the fields of a request to the model server that control sampling."""
    wire_names, read, zeros = _sent(type(params))
    fields = dict(zip(wire_names, read(params), strict=True))
    for wire_name, zero in zeros:
        fields[wire_name] = fields[wire_name] or zero
    return fields


@lru_cache
def _sent(
    model: type[GenerationParams],
) -> tuple[list[str], Callable[[GenerationParams], tuple[Any, ...]], list[tuple[str, int]]]:
    """Return the names in a request, their values' getter, and what 0 is sent as: made once, for every reply needs them."""
    sent = [one for one in parameters(model) if one.use.is_sent]
    wire_names = [one.use.vllm or one.name for one in sent]
    zeros = [
        (wire_name, one.use.zero)
        for wire_name, one in zip(wire_names, sent, strict=True)
        if one.use.zero is not None
    ]
    return wire_names, attrgetter(*(one.name for one in sent)), zeros


if TYPE_CHECKING:
    _OptionalParams = BaseModel
else:
    _OptionalParams = create_model(
        "_OptionalParams", **{one.name: one.optional() for one in parameters()}
    )


class ParamChanges(_OptionalParams):
    """Generation parameters in place of the submission's own; None leaves one as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _refuse_flags = field_validator("*", mode="before")(_not_a_flag)

    def applied_to(self, params: GenerationParams) -> GenerationParams:
        """Return the changed parameters. Token budgets never grow, for the model server was sized for them."""
        changes = {}
        for one in parameters():
            if (value := getattr(self, one.name)) is not None:
                own = getattr(params, one.name)
                changes[one.name] = min(value, own) if one.use.is_budget else value
        return params.model_copy(update=changes)
