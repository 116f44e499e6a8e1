"""A conversation's persona: the original, and the shorter version that its prompts have."""

from __future__ import annotations

from pydantic import BaseModel, Field

from guanaco.open_enum import OpenEnum


class PersonaMethod(OpenEnum):
    """The way in which a persona was shortened: not at all, to its first sentences, to those that tell the most, or by a model."""

    WHOLE = "whole"
    CUT = "cut"
    EXTRACT = "extract"
    MODEL = "model"


class PersonaVersion(BaseModel):
    """One shorter version of a persona. ``kept`` is the share of the original's facts that it keeps, from 0 to 1."""

    method: PersonaMethod
    text: str
    tokens: int
    kept: float = Field(ge=0, le=1)


class ConversationPersona(BaseModel):
    """``text`` is the persona that the conversation's prompts have, ``versions`` what is known by now, the best first: later conversations begin with that."""

    original: str
    text: str
    method: PersonaMethod
    kept: float = Field(ge=0, le=1, description="The share of the original's facts in the text.")
    budget_tokens: int | None = Field(
        default=None,
        description="The tokens that a model has for the persona; null if it is whole.",
    )
    method_version: int | None = Field(default=None, description="The version of the rule.")
    versions: tuple[PersonaVersion, ...] = ()
