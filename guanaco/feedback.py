"""A beta user's opinion of a conversation, as the developer reads it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from guanaco.chat import Conversation, Message
from guanaco.competitions import OPEN
from guanaco.forms import Moment
from guanaco.submissions import GenerationParams

ExportFormat = Literal["jsonl", "csv", "parquet"]
Order = Literal["oldest", "newest"]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("It should not hold a NUL character")
    return text


def _is_false(value: bool) -> bool:
    """Leave the field out of a request, which a version before would refuse."""
    return not value


Words = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_without_nul)]


class FeedbackRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    thumbs_up: bool = Field(strict=True)
    text: str = Field(default="", max_length=4_096)
    may_be_quoted: bool = Field(
        default=False,
        strict=True,
        description="The user agreed, when they rated, that their words are shown on the model's public page: anonymized, without a name and without the conversation.",
        exclude_if=_is_false,
    )


class FeedbackRecorded(BaseModel):
    feedback_id: str


class Rating(BaseModel):
    """A conversation's rating, as the app that gave it reads it."""

    feedback_id: str
    thumbs_up: bool
    text: str
    at: datetime
    changed_at: datetime | None = None
    may_be_quoted: bool = Field(
        default=False, description="True if the words may be shown on the model's public page."
    )
    changeable_until: datetime = Field(
        description="Time until which it can be changed or withdrawn."
    )


class RatingChange(BaseModel):
    """A rating as it was before it was changed or withdrawn."""

    feedback_id: str
    thumbs_up: bool
    text: str
    given_at: datetime
    changed_at: datetime
    now_up: bool | None = Field(description="The rating after the change; None: it was withdrawn.")


class Feedback(BaseModel):
    """``user`` is a keyed pseudonym: the same for one user in all of one developer's submissions, another for each developer.

    In every text personal data is replaced by tags such as <EMAIL>.
    """

    id: str
    submission_id: str
    conversation_id: str
    competition: str = OPEN
    variant: str | None = Field(
        default=None, description="The variant of an experiment that was running."
    )
    user: str
    bot_name: str
    first_message: str = Field(
        default="", description="The bot's first message, before the user wrote."
    )
    thumbs_up: bool
    text: str
    at: datetime
    length: int = Field(default=0, description="Messages that were neither deleted nor replaced.")
    params: GenerationParams | None = None
    messages: list[Message]


class FeedbackFilter(BaseModel):
    """Chooses ratings; all conditions that are given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rating: Literal["up", "down"] | None = None
    search: Words | None = Field(
        default=None, description="In the rating's words or a message, in any case."
    )
    bot: Words | None = Field(default=None, description="The bot's name, in any case.")
    user: Words | None = Field(default=None, description="The user's pseudonym.")
    since: Moment | None = Field(default=None, description="Rated then or later.")
    until: Moment | None = Field(default=None, description="Rated before.")
    min_length: int | None = Field(default=None, ge=0, le=1_000_000)
    max_length: int | None = Field(default=None, ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _is_possible(self) -> FeedbackFilter:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("since should be before until")
        low, high = self.min_length, self.max_length
        if low is not None and high is not None and low > high:
            raise ValueError("min_length should not be over max_length")
        return self


class FeedbackQuery(FeedbackFilter):
    """One page of them."""

    cursor: str | None = Field(default=None, description="The cursor that an earlier page gave.")
    limit: int = Field(default=100, ge=1, le=500)
    order: Order = Field(default="oldest", description="Which comes first.")


class ExportQuery(FeedbackFilter):
    """All of them in one file."""

    cursor: str | None = Field(default=None, description="X-Next-Cursor of an earlier export.")
    format: ExportFormat = "jsonl"


class FeedbackPage(BaseModel):
    items: list[Feedback]
    next_cursor: str | None = Field(
        default=None, description="Give it back as ?cursor= for the next page."
    )


class RawFeedback(BaseModel):
    """A rating as the user wrote it. Only admins read it, and every reading is audited."""

    id: str
    user_id: str
    thumbs_up: bool
    text: str
    at: datetime
    conversation: Conversation


class ErasureRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    user_id: str = Field(min_length=1, max_length=128, description="The app's own id of the user.")
    account: str | None = Field(
        default=None,
        max_length=64,
        description="The backend's account name; needed when users of several have that id.",
    )


class Erasure(BaseModel):
    """Counts what was erased. ``user`` is the pseudonym in the audit log."""

    user: str
    known_as: dict[str, str] = Field(
        default_factory=dict,
        description="By developer: the pseudonym in what this developer has read or exported.",
    )
    conversations: int
    messages: int
    ratings: int

    @property
    def summary(self) -> str:
        """The counts in a sentence, as the CLI and the pages say it."""
        if not self.conversations:
            return (
                "No conversation of a user with that id was found, so none was erased. "
                "The id is the app's own, not the pseudonym that developers see."
            )
        counts = (
            (self.conversations, "conversation"), (self.messages, "message"), (self.ratings, "rating")
        )  # fmt: skip
        parts = [f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts]
        erased = f"Erased: {', '.join(parts)}. The audit log has this user as {self.user}."
        if not self.known_as:
            return erased
        names = ", ".join(
            f"{developer} {name}" for developer, name in sorted(self.known_as.items())
        )
        return f"{erased} Pseudonyms in what developers have read: {names}."
