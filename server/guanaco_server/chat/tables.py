"""Conversations and their messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.chat import Bot, Sender
from guanaco.competitions import OPEN
from guanaco.personas import PersonaMethod
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, JsonColumn, Pydantic, UtcDateTime
from guanaco_server.routing.snapshot import DecisionRecord


class ConversationRow(Table):
    """``turn_token`` and ``turn_until`` are the lease of the reply being written: one at a time, freed by time if its process dies.

    ``message_count`` is the position of the newest message, and grows with each change of an older one too: it tells who
    remembers the messages that they have changed, and the leaderboard that they are to be measured again.

    ``variant`` is that of the A/B experiment it is in; ``decision`` is how it was assigned, where that can be repeated.
    ``carried`` is what is remembered of the user's last conversation with the character, and of which; ``written`` a summary that
    waits for the user's next message. ``change_count`` grows when older messages or the memory are changed: what was written before is stale.
    What was said up to the position ``forgotten_until`` is not remembered: the app had it erased.
    """

    __tablename__ = "conversations"
    __table_args__ = (
        Index(
            "ix_conversations_account_id_user_id_competition",
            "account_id",
            "user_id",
            "competition",
        ),
        Index("ix_conversations_account_id_created_at_id", "account_id", "created_at", "id"),
        Index("ix_conversations_account_id_external_id", "account_id", "external_id", unique=True),
        Index(
            "ix_conversations_changed",
            "id",
            postgresql_where=text("message_count <> measured_count"),
            sqlite_where=text("message_count <> measured_count"),
        ),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    external_id: Mapped[str | None] = mapped_column(String(128))
    app_metadata: Mapped[dict[str, str] | None] = mapped_column(JsonColumn)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"), index=True)
    user_id: Mapped[str] = mapped_column(String(128), index=True)
    user_name: Mapped[str] = mapped_column(String(64))
    competition: Mapped[str] = mapped_column(String(64), default=OPEN)
    bot: Mapped[Bot] = mapped_column(Pydantic(Bot))
    character: Mapped[str | None] = mapped_column(String(64))  # ID@3, that the bot was made of
    experiment: Mapped[str | None] = mapped_column(String(64))
    variant: Mapped[str | None] = mapped_column(String(64))
    decision: Mapped[DecisionRecord | None] = mapped_column(Pydantic(DecisionRecord))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    message_count: Mapped[int] = mapped_column(default=0)
    measured_count: Mapped[int] = mapped_column(default=-1)  # -1: not yet, see records.py
    persona_key: Mapped[str | None] = mapped_column(String(64))  # where it was shortened
    carried: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    written: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    change_count: Mapped[int] = mapped_column(default=0, server_default="0")
    forgotten_until: Mapped[int] = mapped_column(default=0, server_default="0")
    turn_token: Mapped[str | None] = mapped_column(String(32))
    turn_until: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)


class MessageRow(Table):
    """``lore`` are the places in the bot's lorebook of the entries that were told with a user's message, ``recalled`` the positions of earlier ones that were shown again, ``summary`` what was shown of the conversation before it."""

    __tablename__ = "messages"
    __table_args__ = (UniqueConstraint("conversation_id", "position"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id"))
    position: Mapped[int]
    sender: Mapped[Sender] = mapped_column(EnumText(Sender))
    content: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_deleted: Mapped[bool] = mapped_column(default=False)
    is_imported: Mapped[bool] = mapped_column(default=False)
    edited_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    original: Mapped[str | None]  # a reply that was edited, in the model's own words
    thumbs_up: Mapped[bool | None]
    finish_reason: Mapped[str | None] = mapped_column(String(32))
    prompt_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    ttft_ms: Mapped[float | None]
    total_ms: Mapped[float | None]
    reward_score: Mapped[float | None]
    lore: Mapped[list[int] | None] = mapped_column(JsonColumn)
    recalled: Mapped[list[int] | None] = mapped_column(JsonColumn)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)


class ReplyChoiceRow(Table):
    """A judgement: of the replies to one message, which the user went on with. ``rejected`` are the others' ids."""

    __tablename__ = "reply_choices"

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    conversation_id: Mapped[str] = mapped_column(String(64), index=True)
    chosen: Mapped[str] = mapped_column(String(64))
    rejected: Mapped[list[str]] = mapped_column(JsonColumn)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class AskRow(Table):
    """A conversation that may be asked for a rating, with the chance that it is. It goes with its conversation, whoever deletes that.

    ``signals`` were known before the draw. A rating until ``until`` is the answer. There is one for all of a user's conversations with a submission.
    """

    __tablename__ = "asks"
    __table_args__ = (
        UniqueConstraint("user_key", "competition", "submission_id"),
        Index("ix_asks_competition_at_conversation_id", "competition", "at", "conversation_id"),
    )

    conversation_id: Mapped[str] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True
    )
    competition: Mapped[str] = mapped_column(String(64))
    submission_id: Mapped[str] = mapped_column(String(128))
    user_key: Mapped[str] = mapped_column(String(32 + 1 + 128))  # records.USER_KEY_CHARS
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    until: Mapped[datetime] = mapped_column(UtcDateTime)
    chance: Mapped[float]
    is_asked: Mapped[bool]
    signals: Mapped[dict[str, Any]] = mapped_column(JsonColumn)


class ErasedConversationRow(Table):
    """An erased conversation, for the processes that remember it. ``number`` grows in the order of the commits; rows are kept for a day."""

    __tablename__ = "erased_conversations"
    __table_args__ = {"sqlite_autoincrement": True}

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    conversation_id: Mapped[str] = mapped_column(String(64))
    erased_at: Mapped[datetime] = mapped_column(UtcDateTime)


class GatewayPlacesRow(Table):
    """The places at an engine that a gateway process holds until ``held_until``, and those it wants.

    ``submission_id`` is the engine's key. ``submissions`` says which app of which deployment wants how many, ``apps`` adds
    them up for the version before; by that version ``submissions`` is None, and ``submission_id`` is a deployment's key.
    """

    __tablename__ = "gateway_places"

    submission_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    gateway: Mapped[str] = mapped_column(String(32), primary_key=True)
    held: Mapped[int]
    wanted: Mapped[int]
    apps: Mapped[dict[str, int] | None] = mapped_column(JsonColumn)
    submissions: Mapped[dict[str, dict[str, int]] | None] = mapped_column(JsonColumn)
    held_until: Mapped[datetime] = mapped_column(UtcDateTime)


class PersonaVersionRow(Table):
    """A shorter version of a persona. ``key`` is the hash of the persona, its budget, the tokenizer and the rule's version.

    ``account_id`` and ``user_id`` are those of the conversation for which it was made; ``character`` is the stored character, if any.
    """

    __tablename__ = "persona_versions"
    __table_args__ = (
        Index("ix_persona_versions_account_id_user_id", "account_id", "user_id"),
        Index("ix_persona_versions_character", "character"),
    )

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    method: Mapped[PersonaMethod] = mapped_column(EnumText(PersonaMethod), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"))
    user_id: Mapped[str] = mapped_column(String(128))
    character: Mapped[str | None] = mapped_column(String(64))
    artifact_key: Mapped[str] = mapped_column(String(64))
    budget_tokens: Mapped[int]
    method_version: Mapped[int]
    original: Mapped[str]
    text: Mapped[str]
    tokens: Mapped[int]
    kept: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
