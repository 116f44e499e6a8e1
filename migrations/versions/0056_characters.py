"""Characters with versions and files, and which one a conversation began with.

The version before reads none of it: a conversation with a character has a bot like any other, which it goes on with.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn, UtcDateTime

revision = "0056"
down_revision = "0049"


def upgrade() -> None:
    op.create_table(
        "characters",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("tags", JsonColumn, nullable=False),
        sa.Column("greetings", sa.Integer(), nullable=False),
        sa.Column("has_picture", sa.Boolean(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_characters_account_id_accounts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_characters"),
    )
    op.create_index(
        "ix_characters_account_id_created_at_id", "characters", ["account_id", "created_at", "id"]
    )
    op.create_index(
        "ix_characters_is_public_created_at_id", "characters", ["is_public", "created_at", "id"]
    )
    op.create_table(
        "character_versions",
        sa.Column("character_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("spec", sa.String(length=16), nullable=False),
        sa.Column("card", sa.String(), nullable=False),
        sa.Column("texts", JsonColumn, nullable=False),
        sa.Column("files", JsonColumn, nullable=False),
        sa.Column("picture", sa.String(length=64)),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name="fk_character_versions_character_id_characters",
        ),
        sa.PrimaryKeyConstraint("character_id", "number", name="pk_character_versions"),
    )
    op.create_table(
        "character_files",
        sa.Column("character_id", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"], ["characters.id"], name="fk_character_files_character_id_characters"
        ),
        sa.PrimaryKeyConstraint("character_id", "sha256", name="pk_character_files"),
    )
    op.add_column("conversations", sa.Column("character", sa.String(length=64)))
