"""Adds what keeps the first vote of a rating that is withdrawn.

The version before writes no user into feedback_changes, so the first votes of ratings that it withdraws go with them, as until now. It counts a user whose
first vote is withdrawn by the next rating; the next count of that user by this version puts that right.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0096"
down_revision = "0093"

CHANGES = "feedback_changes"


def upgrade() -> None:
    for name, length in (
        ("user_id", 128),
        ("account_id", 32),
        ("submission_id", 128),
        ("competition", 64),
    ):
        op.add_column(CHANGES, sa.Column(name, sa.String(length)))
    withdrawn = sa.text("now_up IS NULL")
    for name, columns in (
        ("ix_feedback_changes_withdrawn_user", ["user_id"]),
        ("ix_feedback_changes_withdrawn_submission", ["submission_id", "given_at"]),
    ):
        op.create_index(name, CHANGES, columns, postgresql_where=withdrawn, sqlite_where=withdrawn)
    for name in ("withdrawn_up", "withdrawn_down"):
        op.add_column(
            "scores", sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
        )
    op.create_table(
        "score_withdrawn_votes",
        sa.Column("user_key", sa.String(161), nullable=False),
        sa.Column("competition", sa.String(64), nullable=False),
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("first_up", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "user_key", "competition", "submission_id", name=op.f("pk_score_withdrawn_votes")
        ),
    )
    op.create_index(
        op.f("ix_score_withdrawn_votes_submission_id"), "score_withdrawn_votes", ["submission_id"]
    )
