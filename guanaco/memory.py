"""A conversation's memory, beyond its prompt."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from guanaco.chat import NO_NUL
from guanaco.open_enum import OpenEnum

MAX_SUMMARY_CHARS = 8_192


class Author(OpenEnum):
    """The author of a summary: a model, the rule that picks sentences, or the app that corrected it."""

    MODEL = "model"
    RULE = "rule"
    APP = "app"


class ShownSummary(BaseModel):
    """A summary at the user's message with which it was shown."""

    message: int = Field(description="The number of that message, from 1, deleted ones counted.")
    until: int = Field(description="The number of the last message that it covers.")
    text: str
    written_by: Author


class RecalledMessages(BaseModel):
    """Earlier messages that were shown again with a user's message, by their numbers."""

    message: int
    recalled: tuple[int, ...]


class CarriedMemory(BaseModel):
    """The memory of the user's last conversation with the same character."""

    conversation_id: str
    text: str


class ConversationMemory(BaseModel):
    """The memory of one conversation. The last of ``summaries`` is in force; earlier ones are in the prompt until they are cut."""

    conversation_id: str
    summaries: list[ShownSummary] = []
    recalled: list[RecalledMessages] = []
    carried: CarriedMemory | None = None
    forgotten_until: int = Field(
        default=0,
        description="Messages up to this number are neither summarized nor recalled: the memory of them was erased.",
    )


class MemoryCorrection(BaseModel):
    model_config = ConfigDict(extra="forbid")

    summary: Annotated[
        str,
        StringConstraints(
            strip_whitespace=True, min_length=1, max_length=MAX_SUMMARY_CHARS, pattern=NO_NUL
        ),
    ] = Field(description="The text that replaces all summaries so far.")
