"""Models of what the old client sends and reads."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.forms import OneLine, Repo
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams

OLD_BEST_OF = 4
USER = "user"  # the sender of a user's turns; any other name is the bot's

Text = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
Iso = Annotated[datetime, PlainSerializer(datetime.isoformat)]
"""With an offset instead of a Z, which Python before 3.11 does not read."""


class OldParams(GenerationParams):
    """The parameters of the old client. Without ``best_of`` there are four candidates, as on the old server."""

    @model_validator(mode="before")
    @classmethod
    def _set_old_default(cls, given: Any) -> Any:
        return {"best_of": OLD_BEST_OF, **given} if isinstance(given, dict) else given


class SubmitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_repo: Repo
    generation_params: OldParams = OldParams()
    formatter: PromptFormatter | None = None
    model_name: OneLine | None = None
    reward_repo: Repo | None = None
    reward_formatter: PromptFormatter | None = None


class Submitted(BaseModel):
    submission_id: str


class LogEntry(BaseModel):
    timestamp: Iso
    level: str
    entry: str
    line_number: int
    path: str


class OldSubmission(BaseModel):
    """``safety_score`` is not measured here, and so never there; ``formatter`` is there if the old client knows its kind."""

    model_config = ConfigDict(protected_namespaces=())

    submission_id: str
    developer_uid: str
    status: str
    model_name: str
    model_repo: str
    reward_repo: str | None
    generation_params: GenerationParams
    formatter: PromptFormatter | None
    timestamp: Iso
    safety_score: float | None = None


class OldSubmissionInfo(OldSubmission):
    logs: list[LogEntry]


class OldTurn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sender: str
    message: Text


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    memory: Text = ""
    prompt: Text = ""
    chat_history: list[OldTurn] = Field(default=[], max_length=1_000)
    bot_name: OneLine
    user_name: OneLine = "You"


class ChatReply(BaseModel):
    """``model_input`` is the very prompt that the model got."""

    model_config = ConfigDict(protected_namespaces=())

    model_output: str
    model_input: str


class OldLeaderboardRow(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    developer_uid: str
    model_name: str
    model_repo: str
    reward_repo: str | None
    is_custom_reward: bool
    status: str
    timestamp: Iso
    thumbs_up: int
    thumbs_down: int
    model_num_parameters: int | None
    safety_score: float | None = None


class OldSender(BaseModel):
    """The client tells a bot by the ``_bot`` in its uid."""

    name: str
    uid: str


class OldMessage(BaseModel):
    message_id: str
    conversation_id: str
    content: str
    sent_date: str
    deleted: bool
    sender: OldSender
    metadata: dict[str, str]


class OldFeedback(BaseModel):
    """Every conversation here is with consent, which the old platform called ``public``."""

    model_config = ConfigDict(protected_namespaces=())

    conversation_id: str
    messages: list[OldMessage]
    thumbs_up: bool
    text: str
    model_name: str
    user_id: str
    public: bool = True


class OldFeedbackPage(BaseModel):
    feedback: dict[str, OldFeedback]
    thumbs_up: int
    thumbs_down: int
