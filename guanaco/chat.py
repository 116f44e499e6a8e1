"""Bots, conversations and their turns."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from guanaco.competitions import OPEN
from guanaco.forms import OneLine, Slug
from guanaco.lore import Lorebook
from guanaco.open_enum import OpenEnum

MAX_MESSAGE_CHARS = 16_384
NO_NUL = r"^[^\x00]*$"
CHOSEN_NOTE = (
    "True if the app named the submission. Then the conversation counts for no leaderboard."
)
CHARACTER_NOTE = (
    "The stored character and its version, as `ID@3`, that the conversation began with."
)
MAX_GREETING = 100


def _is_empty(value: object) -> bool:
    """Leave a newer field out where it says nothing: so a server of the version before takes what is sent."""
    return not value


def _is_false(value: object) -> bool:
    return value is False


def _is_none(value: object) -> bool:
    return value is None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("It should be more than blanks")
    return text


MessageText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_MESSAGE_CHARS),
    AfterValidator(_not_blank),
]
"""A message that a reply can answer."""


class Bot(BaseModel):
    """A character."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: OneLine
    memory: str = Field(
        default="", max_length=MAX_MESSAGE_CHARS, description="The persona; never cut."
    )
    prompt: str = Field(
        default="", max_length=MAX_MESSAGE_CHARS, description="Scenario or example dialogue."
    )
    first_message: str = Field(default="", max_length=MAX_MESSAGE_CHARS)
    post_history: str = Field(
        default="",
        max_length=MAX_MESSAGE_CHARS,
        description="Instructions that stand behind the turns, before the reply; never cut.",
        exclude_if=_is_empty,
    )
    lorebook: Lorebook | None = Field(
        default=None,
        description="Facts that are told when the conversation comes to speak of them.",
        exclude_if=_is_none,
    )


class Sender(OpenEnum):
    USER = "user"
    BOT = "bot"


class Turn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    sender: Sender
    content: str = Field(max_length=MAX_MESSAGE_CHARS)


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)],
        Annotated[str, StringConstraints(max_length=512, pattern=NO_NUL)],
    ],
    Field(max_length=16, description="The app's own notes: up to 16 names with a text each."),
]
ExternalId = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[!-~]+$")]


class ConversationRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    user_id: str = Field(min_length=1, max_length=128, description="The app's own id of the user.")
    bot: Bot | None = Field(
        default=None,
        description="The bot that the user talks to, where no character is named.",
        exclude_if=_is_none,
    )
    character: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="The id of a stored character: its newest version, or one as `ID@3`. In place of a bot.",
        exclude_if=_is_none,
    )
    greeting: int | None = Field(
        default=None,
        ge=-1,
        le=MAX_GREETING,
        description="Number of the character's greeting that is the first message: 0 is its usual one, and the default; -1 is none.",
        exclude_if=_is_none,
    )
    remember: bool = Field(
        default=False,
        description="Let the character know what it remembers of the user's last conversation with it.",
        exclude_if=_is_false,
    )
    user_name: OneLine = "You"
    consent: bool = Field(
        default=False,
        strict=True,
        description="True when the user agreed to talk to an experimental model.",
    )
    competition: Slug = Field(
        default=OPEN, description="The competition from which a submission is assigned."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=260,
        description="The id or alias of the submission to talk to, where the key may choose. Such a conversation counts for no leaderboard.",
    )
    external_id: ExternalId | None = Field(
        default=None,
        description="The app's own id of the conversation, unique in the account: opening it again gives the same one.",
    )
    metadata: Metadata = {}
    history: list[Turn] = Field(
        default=[],
        max_length=1_000,
        description="Earlier messages, from elsewhere. The model reads it; it is neither measured nor rated.",
    )

    @model_validator(mode="after")
    def _is_chosen_or_assigned(self) -> Self:
        if self.model is not None and self.competition != OPEN:
            raise ValueError("A conversation with a chosen model takes part in no competition")
        return self

    @model_validator(mode="after")
    def _has_one_bot(self) -> Self:
        if self.bot is None and self.character is None:
            raise ValueError("A conversation needs a bot or a character")
        if self.bot is not None and self.character is not None:
            raise ValueError("A conversation has a bot or a character, not both")
        if self.remember and self.character is None:
            raise ValueError("Only a stored character remembers: name it as `character`")
        if self.greeting is not None and self.character is None:
            raise ValueError(
                "A greeting is chosen among a character's; a bot has its first_message"
            )
        return self


class ConversationOpened(BaseModel):
    conversation_id: str
    submission_id: str
    character: str | None = Field(default=None, description=CHARACTER_NOTE, exclude_if=_is_none)
    first_message: str | None = Field(
        default=None,
        description="The chosen greeting of the named character, as the user should read it.",
        exclude_if=_is_none,
    )


class Assignment(BaseModel):
    """The submission that a new conversation should go to now."""

    submission_id: str


class MessageRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    content: MessageText
    stream: bool = False


class RegenerateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stream: bool = False
    may_compare: bool = Field(
        default=False,
        description="The app's users have agreed that another submission may write the new reply, where the competition's rule `duels.regenerations` draws it so.",
        exclude_if=_is_false,
    )


class ContinueRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stream: bool = False


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class Timings(BaseModel):
    """Milliseconds, as the gateway saw them."""

    ttft_ms: float
    total_ms: float


class Reply(BaseModel):
    """The model's answer. A stream sends ``token`` events with ``{"text"}``, then this as ``done``, or ``error``."""

    message_id: str | None = Field(description="Null in a preview, which is not recorded.")
    conversation_id: str | None = Field(
        default=None, exclude=True, description="Set where the caller did not name it."
    )
    content: str
    appended: str | None = Field(
        default=None,
        description="The text that was added to a continued reply: the tokens of its stream. `content` is the whole.",
    )
    finish_reason: str
    usage: Usage
    timings: Timings
    ask_for_feedback: bool = Field(
        default=False,
        description="The competition asks for the user's opinion after this reply (`feedback_after`).",
    )
    prompt: str | None = Field(
        default=None, description="The very prompt the model got; previews only."
    )
    reward_score: float | None = Field(
        default=None,
        description="The reward model's score; null if none chose among candidates.",
    )


class Token(BaseModel):
    """A piece of a reply that is being streamed."""

    text: str


class PreviewRequest(BaseModel):
    """A developer's try of their own submission; nothing is recorded."""

    model_config = ConfigDict(extra="forbid")

    bot: Bot
    turns: list[Turn] = Field(default=[], max_length=1_000)
    user_name: OneLine = "You"
    stream: bool = False


class Message(BaseModel):
    """A recorded turn. A reply that was regenerated stays, marked ``is_deleted``; the one in its place ``is_regenerated``."""

    id: str
    sender: Sender
    content: str
    at: datetime
    is_deleted: bool = False
    is_regenerated: bool = False
    is_imported: bool = Field(default=False, description="It was said before, elsewhere.")
    edited_at: datetime | None = None
    thumbs_up: bool | None = Field(
        default=None, strict=True, description="The user's opinion of a reply."
    )
    timings: Timings | None = Field(
        default=None,
        description="Only for a reply in the model's own words that was not one of two.",
    )
    lore: tuple[int, ...] = Field(
        default=(),
        description="Only in a user's message: the places in the bot's lorebook, from 0, of the entries that were told with it.",
        exclude_if=_is_empty,
    )
    recalled: tuple[int, ...] = Field(
        default=(),
        description="Only in a user's message: the earlier messages that were shown to the model again with it, by their number in the conversation, from 1, deleted ones counted.",
        exclude_if=_is_empty,
    )


class Conversation(BaseModel):
    conversation_id: str
    submission_id: str
    bot: Bot
    user_name: str
    created_at: datetime
    competition: str | None = Field(
        default=None,
        description="The competition that it takes part in. Null if the app named the submission, and from older servers.",
    )
    character: str | None = Field(default=None, description=CHARACTER_NOTE)
    is_chosen: bool = Field(default=False, description=CHOSEN_NOTE)
    external_id: str | None = None
    metadata: dict[str, str] = {}
    messages: list[Message] = []


class ConversationSummary(BaseModel):
    """A conversation in a list. ``last_message`` is the newest that was neither deleted nor replaced."""

    conversation_id: str
    submission_id: str
    user_id: str
    user_name: str
    bot_name: str
    character: str | None = Field(default=None, description=CHARACTER_NOTE)
    created_at: datetime
    is_chosen: bool = Field(default=False, description=CHOSEN_NOTE)
    external_id: str | None = None
    metadata: dict[str, str] = {}
    last_message: Message | None = None


class ConversationQuery(BaseModel):
    """A page of the account's own conversations, newest first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user_id: str | None = Field(default=None, min_length=1, max_length=128)
    external_id: ExternalId | None = None
    cursor: str | None = Field(default=None, max_length=128)
    limit: int = Field(default=50, ge=1, le=200)


class ConversationPage(BaseModel):
    items: list[ConversationSummary]
    next_cursor: str | None = Field(
        default=None, description="Give it back as ?cursor= for older ones."
    )


class ConversationChanges(BaseModel):
    model_config = ConfigDict(extra="forbid")

    metadata: Metadata


class MessageChanges(BaseModel):
    model_config = ConfigDict(extra="forbid")

    content: Annotated[MessageText, StringConstraints(pattern=NO_NUL)]


class ChoiceRequest(BaseModel):
    """The swipe of the last reply with which the conversation goes on."""

    model_config = ConfigDict(extra="forbid")

    message_id: str = Field(min_length=1, max_length=64)


class MessageRating(BaseModel):
    model_config = ConfigDict(extra="forbid")

    thumbs_up: bool
