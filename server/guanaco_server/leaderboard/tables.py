"""The leaderboard's tables. Their content follows from conversations and ratings, and can be counted again.

Some hold keys of users, to count a user once; ``counting.queries.forget_users`` deletes these rows.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.competitions import RankingRule
from guanaco_server.chat.conversations.records import USER_KEY_CHARS
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, UtcDateTime


class CountingLockRow(Table):
    """One row. Whoever changes the tables below raises ``version`` first, which keeps all others out until it commits.

    ``definitions_at`` is the last version that was raised by a process that writes ``definition`` below.
    """

    __tablename__ = "score_books"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]
    definitions_at: Mapped[int] = mapped_column(default=0)


class ScoreRow(Table):
    """A submission's aggregate in a competition (``tally``, JSON): the sum over its conversations, votes and visits.

    ``turned_up`` of the votes that are ``up`` now were down at first, and the other way round with ``turned_down``. ``withdrawn_up`` and
    ``withdrawn_down`` are first votes of users whose ratings of it are all withdrawn.
    """

    __tablename__ = "scores"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    tally: Mapped[str]
    up: Mapped[int] = mapped_column(default=0)
    down: Mapped[int] = mapped_column(default=0)
    turned_up: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    turned_down: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    withdrawn_up: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    withdrawn_down: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    rated: Mapped[int] = mapped_column(default=0)
    version: Mapped[int]


class CountedConversationRow(Table):
    """A conversation's part of its submission's aggregate (``tally``, JSON).

    ``definition`` is the version of the definitions that it was measured by (counting/measurement.py).
    """

    __tablename__ = "score_conversations"
    __table_args__ = (
        Index("ix_score_conversations_user_key", "user_key", "submission_id"),
        Index("ix_score_conversations_definition", "definition"),
    )

    conversation_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), index=True)
    competition: Mapped[str] = mapped_column(String(64))
    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS))
    tally: Mapped[str]
    first_day: Mapped[int | None]
    second_day: Mapped[int | None]
    definition: Mapped[int] = mapped_column(default=1)


class VoteRow(Table):
    """A user's vote on a submission: the latest one as it counts now, and the first one where it differs."""

    __tablename__ = "score_votes"

    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    thumbs_up: Mapped[bool]
    first_up: Mapped[bool | None]


class WithdrawnVoteRow(Table):
    """The first vote of a user whose ratings of a submission that count are all withdrawn."""

    __tablename__ = "score_withdrawn_votes"

    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    first_up: Mapped[bool]


class VisitRow(Table):
    """A user's first day with a submission, and whether they came back on the next."""

    __tablename__ = "score_visits"

    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS), primary_key=True)
    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    first_day: Mapped[int]
    has_returned: Mapped[bool]


class RatingSlotRow(Table):
    """A submission's ratings in one minute; flags/rules.py says which minutes are bursts."""

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
    """A submission to count again, since what is recorded of it has changed."""

    __tablename__ = "score_recounts"

    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True)


class CorrectionRow(Table):
    """A rating that was changed or withdrawn: its user's votes and its slot (tables.RatingSlotRow) are to be counted again.

    With a ``conversation_id``, that conversation was deleted, and what it counted is to be taken back.
    """

    __tablename__ = "score_corrections"

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    user_key: Mapped[str] = mapped_column(String(USER_KEY_CHARS))
    submission_id: Mapped[str] = mapped_column(String(128))
    competition: Mapped[str] = mapped_column(String(64))
    slot: Mapped[int]
    conversation_id: Mapped[str | None] = mapped_column(String(64))


class CountedWindowRow(Table):
    """The window that a competition's votes were counted for."""

    __tablename__ = "score_windows"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class VoteFlagRow(Table):
    """The audit trail of left-out ratings and duels. A row changes only when its flag is lifted or allowed.

    ``feedback_id`` of a duel is its battle's, and ``rival_id`` the other submission; a rating has none.
    """

    __tablename__ = "vote_flags"
    __table_args__ = (
        Index(
            "ix_vote_flags_allowed",
            "competition",
            postgresql_where=text("allowed_at IS NOT NULL"),
            sqlite_where=text("allowed_at IS NOT NULL"),
        ),
        Index(
            "ix_vote_flags_duels",
            "competition",
            postgresql_where=text("rival_id IS NOT NULL"),
            sqlite_where=text("rival_id IS NOT NULL"),
        ),
    )

    feedback_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    rule: Mapped[str] = mapped_column(String(32), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), index=True)
    rival_id: Mapped[str | None] = mapped_column(String(128))
    competition: Mapped[str] = mapped_column(String(64))
    evidence: Mapped[str]
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    lifted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    allowed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    allowed_by: Mapped[str | None] = mapped_column(String(64))


class StandingRow(Table):
    """The ranking as last computed; ``metrics`` is a SubmissionMetrics as JSON."""

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
    """A score at the first ranking of an hour (since the epoch); ``figures`` is a MetricValues as JSON."""

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


class BoardClaimRow(Table):
    """A claim that a board has made about a submission once, and that is notified once: "settled", or a rank (claims.py). ``facts`` is JSON."""

    __tablename__ = "board_claims"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    claim: Mapped[str] = mapped_column(String(64), primary_key=True)
    submission_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    facts: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class BoardPairsRow(Table):
    """How few votes decide between neighbours on a board, as last found (stability.py): ``pairs`` is JSON, in the board's order."""

    __tablename__ = "board_pairs"

    competition: Mapped[str] = mapped_column(String(64), primary_key=True)
    ranking: Mapped[RankingRule] = mapped_column(EnumText(RankingRule, 32))
    pairs: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class SeasonRow(Table):
    """A frozen competition's final ranking, byte for byte (seasons/document.py); ``pairs`` is as in BoardPairsRow, and null until it is found."""

    __tablename__ = "seasons"

    competition: Mapped[str] = mapped_column(ForeignKey("competitions.id"), primary_key=True)
    frozen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ranking: Mapped[bytes] = mapped_column(LargeBinary)
    sha256: Mapped[str] = mapped_column(String(64))
    pairs: Mapped[str | None] = mapped_column(Text)
