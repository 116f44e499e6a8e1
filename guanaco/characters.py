"""Characters: stored with ids and versions, made of a form or of a Character Card, and given back as the same card."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.forms import OneLine
from guanaco.lore import Lorebook
from guanaco.open_enum import OpenEnum

MAX_GREETINGS = 100
MAX_TAGS = 100
CardFormat = Literal["json", "png", "charx"]

Text = Annotated[str, StringConstraints(max_length=MAX_MESSAGE_CHARS)]


def _is_none(value: object) -> bool:
    return value is None


class CardSpec(OpenEnum):
    """The kinds of cards that a version may come as."""

    FORM = "form"
    V1 = "v1"
    V2 = "v2"
    V3 = "v3"


class CharacterForm(BaseModel):
    """Our own form of a character. A Character Card may be sent in its place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: OneLine
    nickname: OneLine | None = Field(
        default=None, description="What `{{char}}` stands for, in place of the name."
    )
    description: Text = Field(default="", description="The persona.")
    personality: Text = ""
    scenario: Text = ""
    greetings: tuple[Text, ...] = Field(
        default=(), max_length=MAX_GREETINGS, description="First messages; the first is the usual."
    )
    example_messages: Text = ""
    system_prompt: Text = Field(default="", description="Stands before the persona.")
    post_history_instructions: Text = Field(
        default="", description="Stands behind the turns of a conversation."
    )
    creator: Text = ""
    creator_notes: Text = Field(default="", description="For people; no model reads them.")
    character_version: Text = Field(default="", description="The creator's own name of it.")
    tags: tuple[Annotated[str, StringConstraints(max_length=200)], ...] = Field(
        default=(), max_length=MAX_TAGS
    )
    lorebook: Lorebook | None = None


class CharacterAsset(BaseModel):
    """A file that came with a card."""

    path: str
    size_bytes: int


class CharacterSummary(BaseModel):
    """A character in a list, as its newest version says."""

    id: str
    version: int = Field(description="The newest.")
    name: str
    owner: str = Field(description="The name of the account that it belongs to.")
    is_public: bool
    tags: tuple[str, ...] = ()
    greetings: int = Field(description="Number of first messages.")
    has_picture: bool = False
    created_at: datetime
    updated_at: datetime


class CharacterTexts(BaseModel):
    """The texts of one version, as its card has them, with their macros."""

    name: str
    nickname: str | None = None
    description: str = ""
    personality: str = ""
    scenario: str = ""
    greetings: tuple[str, ...] = ()
    example_messages: str = ""
    system_prompt: str = ""
    post_history_instructions: str = ""
    creator: str = ""
    creator_notes: str = ""
    character_version: str = ""
    tags: tuple[str, ...] = ()
    lorebook_entries: int = Field(
        default=0, description="Entries of the card's own lorebook, those that are off included."
    )
    lorebook: Lorebook | None = Field(
        default=None,
        description="The entries that conversations use. Versions from before lorebooks have none.",
        exclude_if=_is_none,
    )


class Character(CharacterTexts):
    """One version of a character."""

    id: str
    version: int
    newest: int = Field(description="The number of the newest version.")
    owner: str = Field(description="The name of the account that it belongs to.")
    is_public: bool
    spec: CardSpec = Field(description="The kind of card that this version came as.")
    has_picture: bool = False
    assets: tuple[CharacterAsset, ...] = ()
    size_bytes: int
    created_at: datetime


class CharacterPage(BaseModel):
    items: list[CharacterSummary]
    next_cursor: str | None = Field(
        default=None, description="Give it back as ?cursor= for older ones."
    )


class CharacterQuery(BaseModel):
    """A page of characters, newest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    whose: Literal["own", "public"] = Field(
        default="own", description="Your own, or everybody's public ones."
    )
    cursor: str | None = Field(default=None, max_length=128)
    limit: int = Field(default=50, ge=1, le=200)


class CharacterChanges(BaseModel):
    model_config = ConfigDict(extra="forbid")

    is_public: bool = Field(strict=True, description="True if every account may talk to it.")


class CharactersErased(BaseModel):
    """The numbers of characters that were erased, and of their versions."""

    characters: int
    versions: int
