"""Prompt files: a prompt in named parts, each with Jinja content, a role and a truncation priority.

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

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from guanaco.forms import OneLine

MAX_PARTS = 32
MAX_CONTENT_CHARS = 16_384

Role = Literal["system", "user", "assistant"]


class PromptPart(BaseModel):
    """``each: turn`` makes one piece of every turn; its role is the sender's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine
    content: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTENT_CHARS)] = Field(
        description="Jinja, of bot_name, user_name, memory and prompt; for each turn also of name, message and sender."
    )
    role: Role | None = None
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
