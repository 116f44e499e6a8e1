"""Adds the leaderboard's tables: tallies, votes, flags, standings, score histories and seasons."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

AT = sa.DateTime(timezone=True)
ID = sa.String(length=64)
USER = SUBMISSION = sa.String(length=128)


def upgrade() -> None:
    mark_what_is_new()
    create_tallies()
    create_flags()
    create_standings()


def mark_what_is_new() -> None:
    """Everything that was there before counts as new, and is counted by the scorekeeper."""
    op.add_column(
        "conversations",
        sa.Column("measured_count", sa.Integer(), nullable=False, server_default="-1"),
    )
    changed = sa.text("message_count <> measured_count")
    op.create_index(
        "ix_conversations_changed",
        "conversations",
        ["id"],
        postgresql_where=changed,
        sqlite_where=changed,
    )
    op.add_column(
        "feedback", sa.Column("account_id", sa.String(length=32), nullable=False, server_default="")
    )
    op.add_column(
        "feedback",
        sa.Column("is_counted", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.execute(
        "UPDATE feedback SET account_id = (SELECT account_id FROM conversations"
        " WHERE conversations.id = feedback.conversation_id)"
    )
    op.create_index("ix_feedback_user_id_created_at", "feedback", ["user_id", "created_at"])
    uncounted = sa.text("NOT is_counted")
    op.create_index(
        "ix_feedback_uncounted",
        "feedback",
        ["id"],
        postgresql_where=uncounted,
        sqlite_where=uncounted,
    )


def create_tallies() -> None:
    op.create_table(
        "score_books",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_score_books"),
    )
    op.execute("INSERT INTO score_books (id, version) VALUES (1, 0)")
    op.create_table(
        "scores",
        sa.Column("competition", ID, nullable=False),
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("tally", sa.String(), nullable=False),
        sa.Column("up", sa.Integer(), nullable=False),
        sa.Column("down", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("competition", "submission_id", name="pk_scores"),
    )
    op.create_index("ix_scores_submission_id", "scores", ["submission_id"])
    op.create_table(
        "score_conversations",
        sa.Column("conversation_id", ID, nullable=False),
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("competition", ID, nullable=False),
        sa.Column("user_id", USER, nullable=False),
        sa.Column("tally", sa.String(), nullable=False),
        sa.Column("first_day", sa.Integer()),
        sa.Column("second_day", sa.Integer()),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_score_conversations"),
    )
    op.create_index(
        "ix_score_conversations_submission_id", "score_conversations", ["submission_id"]
    )
    op.create_index(
        "ix_score_conversations_user_id", "score_conversations", ["user_id", "submission_id"]
    )
    for table, columns in {
        "score_votes": [sa.Column("thumbs_up", sa.Boolean(), nullable=False)],
        "score_visits": [
            sa.Column("first_day", sa.Integer(), nullable=False),
            sa.Column("has_returned", sa.Boolean(), nullable=False),
        ],
    }.items():
        op.create_table(
            table,
            sa.Column("user_id", USER, nullable=False),
            sa.Column("competition", ID, nullable=False),
            sa.Column("submission_id", SUBMISSION, nullable=False),
            *columns,
            sa.PrimaryKeyConstraint("user_id", "competition", "submission_id", name=f"pk_{table}"),
        )
        op.create_index(f"ix_{table}_submission_id", table, ["submission_id"])
    op.create_table(
        "score_recounts",
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.PrimaryKeyConstraint("submission_id", name="pk_score_recounts"),
    )
    op.create_table(
        "score_windows",
        sa.Column("competition", ID, nullable=False),
        sa.Column("starts_at", AT, nullable=False),
        sa.Column("ends_at", AT),
        sa.PrimaryKeyConstraint("competition", name="pk_score_windows"),
    )


def create_flags() -> None:
    op.create_table(
        "score_slots",
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("competition", ID, nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("ratings", sa.Integer(), nullable=False),
        sa.Column("is_burst", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("submission_id", "competition", "slot", name="pk_score_slots"),
    )
    for name, column, condition in (
        ("ix_score_slots_large", "slot", "ratings > 100"),
        ("ix_score_slots_bursts", "submission_id", "is_burst"),
    ):
        where = sa.text(condition)
        op.create_index(name, "score_slots", [column], postgresql_where=where, sqlite_where=where)
    op.create_table(
        "vote_flags",
        sa.Column("feedback_id", ID, nullable=False),
        sa.Column("rule", sa.String(length=32), nullable=False),
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("competition", ID, nullable=False),
        sa.Column("evidence", sa.String(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("lifted_at", AT),
        sa.Column("allowed_at", AT),
        sa.Column("allowed_by", ID),
        sa.PrimaryKeyConstraint("feedback_id", "rule", name="pk_vote_flags"),
    )
    op.create_index("ix_vote_flags_submission_id", "vote_flags", ["submission_id"])
    op.create_index("ix_vote_flags_at", "vote_flags", ["at"])


def create_standings() -> None:
    op.create_table(
        "standings",
        sa.Column("competition", ID, nullable=False),
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("score", sa.Double()),
        sa.Column("low", sa.Double()),
        sa.Column("high", sa.Double()),
        sa.Column("metrics", sa.String(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.PrimaryKeyConstraint("competition", "submission_id", name="pk_standings"),
    )
    op.create_index("ix_standings_submission_id", "standings", ["submission_id"])
    op.create_table(
        "score_points",
        sa.Column("submission_id", SUBMISSION, nullable=False),
        sa.Column("competition", ID, nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("submission_id", "competition", "hour", name="pk_score_points"),
    )
    op.create_index("ix_score_points_hour", "score_points", ["hour"])
    op.create_table(
        "seasons",
        sa.Column("competition", ID, nullable=False),
        sa.Column("frozen_at", AT, nullable=False),
        sa.Column("ranking", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["competition"], ["competitions.id"], name="fk_seasons_competition_competitions"
        ),
        sa.PrimaryKeyConstraint("competition", name="pk_seasons"),
    )
