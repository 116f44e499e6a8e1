"""Ratings that are changed or withdrawn, and answers kept for requests that are repeated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0026"
down_revision = "0025"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column(
        "feedback", sa.Column("revision", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column("feedback", sa.Column("changed_at", UtcDateTime()))
    op.create_table(
        "feedback_changes",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("feedback_id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("thumbs_up", sa.Boolean(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("now_up", sa.Boolean()),
        sa.Column("given_at", UtcDateTime(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.Column("changed_by", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_feedback_changes")),
    )
    for column in ("feedback_id", "conversation_id"):
        op.create_index(f"ix_feedback_changes_{column}", "feedback_changes", [column])
    op.create_table(
        "score_corrections",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("user_key", sa.String(161), nullable=False),
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("competition", sa.String(64), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_score_corrections")),
    )
    op.create_table(
        "idempotent_requests",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("key_hash", sa.String(64), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(64)),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("token", sa.String(32)),
        sa.Column("claimed_until", UtcDateTime()),
        sa.Column("answer", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("account_id", "key_hash", name=op.f("pk_idempotent_requests")),
    )
    for column in ("conversation_id", "created_at"):
        op.create_index(f"ix_idempotent_requests_{column}", "idempotent_requests", [column])
