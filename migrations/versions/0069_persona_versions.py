"""Shorter versions of personas that no model has room for, and which of them a conversation has.

The version before refuses such a persona, as it did; it goes on with conversations that have a shorter one, which is their bot's.
While it runs beside this one, the versions of a user or a character that it erases stay.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0069"
down_revision = "0068"


def upgrade() -> None:
    op.create_table(
        "persona_versions",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("user_id", sa.String(128), nullable=False),
        sa.Column("character", sa.String(64)),
        sa.Column("artifact_key", sa.String(64), nullable=False),
        sa.Column("budget_tokens", sa.Integer(), nullable=False),
        sa.Column("method_version", sa.Integer(), nullable=False),
        sa.Column("original", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", "method", name="pk_persona_versions"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_persona_versions_account_id_accounts"
        ),
    )
    op.create_index(
        "ix_persona_versions_account_id_user_id", "persona_versions", ["account_id", "user_id"]
    )
    op.create_index("ix_persona_versions_character", "persona_versions", ["character"])
    op.add_column("conversations", sa.Column("persona_key", sa.String(64)))
