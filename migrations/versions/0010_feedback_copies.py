"""Anonymized copies of ratings, what was erased, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(
        "feedback", sa.Column("anonymized_by", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_index(
        "ix_feedback_anonymized_by_submission_id", "feedback", ["anonymized_by", "submission_id"]
    )
    op.create_table(
        "feedback_copies",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("feedback_id", sa.String(length=64), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("pseudonym", sa.String(length=64), nullable=False),
        sa.Column("bot_name", sa.String(length=512), nullable=False),
        sa.Column("thumbs_up", sa.Boolean(), nullable=False),
        sa.Column("rated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("words", sa.String(), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["feedback_id"], ["feedback.id"], name="fk_feedback_copies_feedback_id_feedback"
        ),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name="fk_feedback_copies_submission_id_submissions",
        ),
        sa.PrimaryKeyConstraint("number", name="pk_feedback_copies"),
        sa.UniqueConstraint("feedback_id", name="uq_feedback_copies_feedback_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_feedback_copies_submission_id_number", "feedback_copies", ["submission_id", "number"]
    )
    op.create_index(
        "ix_feedback_copies_submission_id_pseudonym",
        "feedback_copies",
        ["submission_id", "pseudonym"],
    )
    op.create_table(
        "erased_conversations",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_erased_conversations"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=256), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
