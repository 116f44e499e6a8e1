"""Conversations with the app's own ids and notes, imported and edited messages, choices among replies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn, UtcDateTime

revision = "0027"
down_revision = "0026"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("conversations", sa.Column("external_id", sa.String(128)))
    op.add_column("conversations", sa.Column("app_metadata", JsonColumn))
    op.create_index(
        "ix_conversations_account_id_created_at_id",
        "conversations",
        ["account_id", "created_at", "id"],
    )
    op.create_index(
        "ix_conversations_account_id_external_id",
        "conversations",
        ["account_id", "external_id"],
        unique=True,
    )
    op.add_column(
        "messages",
        sa.Column("is_imported", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("messages", sa.Column("edited_at", UtcDateTime()))
    op.add_column("messages", sa.Column("original", sa.String()))
    op.add_column("messages", sa.Column("thumbs_up", sa.Boolean()))
    op.add_column("score_corrections", sa.Column("conversation_id", sa.String(64)))
    op.create_table(
        "reply_choices",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("chosen", sa.String(64), nullable=False),
        sa.Column("rejected", JsonColumn, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_reply_choices")),
    )
    op.create_index("ix_reply_choices_conversation_id", "reply_choices", ["conversation_id"])
