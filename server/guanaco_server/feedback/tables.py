"""Ratings as they were given, and the anonymized copies that developers read."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.competitions import OPEN
from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class FeedbackRow(Table):
    """A conversation's rating, raw: only an admin may read it. ``anonymized_by`` is its copy's version, 0 without one.

    ``revision`` grows with each change of what the copy shows, so that a copy of what was there before is not kept.
    """

    __tablename__ = "feedback"
    __table_args__ = (
        Index("ix_feedback_submission_id_created_at_id", "submission_id", "created_at", "id"),
        Index("ix_feedback_anonymized_by_submission_id", "anonymized_by", "submission_id"),
        Index("ix_feedback_user_id_created_at", "user_id", "created_at"),
        Index("ix_feedback_competition_created_at", "competition", "created_at"),
        Index(
            "ix_feedback_uncounted",
            "created_at",
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
    anonymized_by: Mapped[int] = mapped_column(default=0)
    is_counted: Mapped[bool] = mapped_column(default=False)  # see records.py
    revision: Mapped[int] = mapped_column(default=0)
    changed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    quotable_as_of: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def may_be_quoted(self) -> bool:
        """The user agreed to it with these words: an agreement with earlier ones, changed by whatever version, is over."""
        return self.quotable_as_of is not None and self.quotable_as_of == (
            self.changed_at or self.created_at
        )


class RatingChangeRow(Table):
    """The audit trail: what a rating was before it was changed or withdrawn. ``now_up`` is None where it was withdrawn.

    The columns that say who rated what are None in rows that versions before migration 0096 wrote.
    """

    __tablename__ = "feedback_changes"
    __table_args__ = (
        Index(
            "ix_feedback_changes_withdrawn_user",
            "user_id",
            postgresql_where=text("now_up IS NULL"),
            sqlite_where=text("now_up IS NULL"),
        ),
        Index(
            "ix_feedback_changes_withdrawn_submission",
            "submission_id",
            "given_at",
            postgresql_where=text("now_up IS NULL"),
            sqlite_where=text("now_up IS NULL"),
        ),
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    feedback_id: Mapped[str] = mapped_column(String(64), index=True)
    conversation_id: Mapped[str] = mapped_column(String(64), index=True)
    thumbs_up: Mapped[bool]
    text: Mapped[str]
    now_up: Mapped[bool | None]
    given_at: Mapped[datetime] = mapped_column(UtcDateTime)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    changed_by: Mapped[str] = mapped_column(String(32))
    user_id: Mapped[str | None] = mapped_column(String(128))
    account_id: Mapped[str | None] = mapped_column(String(32))
    submission_id: Mapped[str | None] = mapped_column(String(128))
    competition: Mapped[str | None] = mapped_column(String(64))


class FeedbackCopyRow(Table):
    """The copy that a developer reads: ``document`` is the Feedback as JSON, the other columns are for filters.

    ``number`` grows in the order of the commits and is never given twice: it is the cursor.
    """

    __tablename__ = "feedback_copies"
    __table_args__ = (
        Index("ix_feedback_copies_submission_id_number", "submission_id", "number"),
        Index("ix_feedback_copies_submission_id_pseudonym", "submission_id", "pseudonym"),
        Index(
            "ix_feedback_copies_quotable",
            "submission_id",
            "number",
            postgresql_where=text("is_quotable"),
            sqlite_where=text("is_quotable"),
        ),
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    feedback_id: Mapped[str] = mapped_column(String(64), unique=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submissions.id"))
    pseudonym: Mapped[str] = mapped_column(String(64))
    bot_name: Mapped[str] = mapped_column(String(512))
    thumbs_up: Mapped[bool]
    rated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    length: Mapped[int]
    words: Mapped[str]
    document: Mapped[str]
    is_quotable: Mapped[bool] = mapped_column(default=False, server_default=false())


class ErasureRow(Table):
    """An entry of the erasure ledger that was carried out in this database; see ledger.py."""

    __tablename__ = "erasures"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
