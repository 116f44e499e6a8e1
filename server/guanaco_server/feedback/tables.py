"""Ratings."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.competitions import OPEN
from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class FeedbackRow(Table):
    """One rating a conversation. ``user_id`` is raw, and read out only as a keyed pseudonym."""

    __tablename__ = "feedback"
    __table_args__ = (
        Index("ix_feedback_submission_id_created_at_id", "submission_id", "created_at", "id"),
        Index("ix_feedback_user_id_created_at", "user_id", "created_at"),
        Index(
            "ix_feedback_uncounted",
            "id",
            postgresql_where=text("NOT is_counted"),
            sqlite_where=text("NOT is_counted"),
        ),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id"), unique=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"))
    user_id: Mapped[str] = mapped_column(String(128))
    account_id: Mapped[str] = mapped_column(String(32), default="")  # the conversation's
    competition: Mapped[str] = mapped_column(String(64), default=OPEN)
    bot_name: Mapped[str] = mapped_column(String(64))
    thumbs_up: Mapped[bool]
    text: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_counted: Mapped[bool] = mapped_column(default=False)  # see records.py
