"""Browser sessions, visitors of the chat page, and the history of scores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "web_sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name="fk_web_sessions_key_id_api_keys"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_web_sessions"),
    )
    op.create_index("ix_web_sessions_key_id", "web_sessions", ["key_id"])
    op.create_index("ix_web_sessions_expires_at", "web_sessions", ["expires_at"])
    op.create_table(
        "web_visitors",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("consented_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_web_visitors"),
    )
    op.create_table(
        "web_chats",
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("visitor_id", sa.String(length=64), nullable=False),
        sa.Column("bot_name", sa.String(length=64), nullable=False),
        sa.Column("thumbs_up", sa.Boolean()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["visitor_id"], ["web_visitors.id"], name="fk_web_chats_visitor_id_web_visitors"
        ),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_web_chats"),
    )
    op.create_index("ix_web_chats_visitor_id_created_at", "web_chats", ["visitor_id", "created_at"])
    op.create_table(
        "web_scores",
        sa.Column("competition", sa.String(length=64), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("slot", sa.String(length=13), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("low", sa.Double()),
        sa.Column("high", sa.Double()),
        sa.Column("conversations", sa.Integer(), nullable=False),
        sa.Column("mean_length", sa.Double()),
        sa.PrimaryKeyConstraint("competition", "submission_id", "slot", name="pk_web_scores"),
    )
    op.create_index("ix_web_scores_at", "web_scores", ["at"])
