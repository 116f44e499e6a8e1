"""What the leaderboard keeps: all of it follows from conversations and ratings, and can be counted anew.

Keys of users are in here (chat/user_keys.py), to count a user once; ``forget_users`` takes them out.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco_server.chat.conversations.records import USER_KEY_CHARS
from guanaco_server.database.tables import Table
from guanaco_server.database.types import UtcDateTime


class BooksRow(Table):
    """One row: who changes the tables below changes ``version`` first, which keeps all others out until it commits."""

    __tablename__ = "score_books"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]


class ScoreRow(Table):
    """A submission's tally in a competition: the sum over its conversations, votes and visits."""

    __tablename__ = "scores"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    tally: Mapped[str]
    up: Mapped[int] = mapped_column(default=0)
    down: Mapped[int] = mapped_column(default=0)
    rated: Mapped[int] = mapped_column(default=0)
    version: Mapped[int]


class MeasuredConversationRow(Table):
    """What a conversation has added so far."""

    __tablename__ = "score_conversations"
    __table_args__ = (Index("ix_score_conversations_user_key", "user_key", "submission_id"),)

    conversation_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), index=True)
    competition: Mapped[str] = mapped_column(String(64))
    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS))
    tally: Mapped[str]
    first_day: Mapped[int | None]
    second_day: Mapped[int | None]


class VoteRow(Table):
    """A user's vote on a submission, as it counts now."""

    __tablename__ = "score_votes"

    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    thumbs_up: Mapped[bool]


class VisitRow(Table):
    """A user's first day with a submission, and whether she came back on the next."""

    __tablename__ = "score_visits"

    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    first_day: Mapped[int]
    has_returned: Mapped[bool]


class RatingSlotRow(Table):
    """A submission's ratings of one minute; ``is_burst`` by flags.py."""

    __tablename__ = "score_slots"
    __table_args__ = (
        Index(
            "ix_score_slots_large",
            "slot",
            postgresql_where=text("ratings > 30"),
            sqlite_where=text("ratings > 30"),
        ),
        Index(
            "ix_score_slots_bursts",
            "submission_id",
            postgresql_where=text("is_burst"),
            sqlite_where=text("is_burst"),
        ),
    )

    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True)
    ratings: Mapped[int]
    is_burst: Mapped[bool] = mapped_column(default=False)


class RecountRow(Table):
    """A submission whose raw events have changed under the tallies: it is counted anew."""

    __tablename__ = "score_recounts"

    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True)


class CountedWindowRow(Table):
    """The window that a competition's votes were counted for."""

    __tablename__ = "score_windows"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class VoteFlagRow(Table):
    """The audit trail of what was left out; a row is never changed but for being lifted or allowed."""

    __tablename__ = "vote_flags"

    feedback_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    rule: Mapped[str] = mapped_column(String(32), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), index=True)
    competition: Mapped[str] = mapped_column(String(64))
    evidence: Mapped[str]
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    lifted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    allowed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    allowed_by: Mapped[str | None] = mapped_column(String(64))


class StandingRow(Table):
    """The ranking as it was computed last; ``metrics`` is a SubmissionMetrics as JSON."""

    __tablename__ = "standings"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    rank: Mapped[int | None]
    score: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    metrics: Mapped[str]
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class ScorePointRow(Table):
    """A score as it was at the first ranking of an hour (hours since the epoch); ``figures`` are the metrics' values, JSON."""

    __tablename__ = "score_points"

    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True, index=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    rank: Mapped[int | None]
    score: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    figures: Mapped[str] = mapped_column(default="{}")


class SeasonRow(Table):
    """A frozen competition's final ranking, byte for byte."""

    __tablename__ = "seasons"

    competition: Mapped[str] = mapped_column(ForeignKey("competitions.id"), primary_key=True)
    frozen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ranking: Mapped[bytes] = mapped_column(LargeBinary)
    sha256: Mapped[str] = mapped_column(String(64))
