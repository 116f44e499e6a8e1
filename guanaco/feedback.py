"""What a beta user thought of a conversation, as the developer reads it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from guanaco.chat import Message


class FeedbackRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    thumbs_up: bool
    text: str = Field(default="", max_length=4_096)


class FeedbackRecorded(BaseModel):
    feedback_id: str


class Feedback(BaseModel):
    """``user`` is a keyed pseudonym: the same for one user everywhere, and worth nothing outside."""

    id: str
    submission_id: str
    conversation_id: str
    user: str
    bot_name: str
    thumbs_up: bool
    text: str
    at: datetime
    messages: list[Message]


class FeedbackPage(BaseModel):
    items: list[Feedback]
    next_cursor: str | None = Field(
        default=None, description="Give it back as ?cursor= for the next page."
    )
