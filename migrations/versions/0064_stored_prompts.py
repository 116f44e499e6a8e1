"""Stored prompts with versions and labels, and which of them a submission names.

The version before ignores them: it serves a submission by its own `formatter`, which is kept the same as what it names. A label that is moved by this
version reaches its gateways in the same way.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from guanaco_server.database.types import UtcDateTime

revision = "0064"
down_revision = "0063"


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True), "postgresql"
    )
    op.create_table(
        "stored_prompts",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "name", name="pk_stored_prompts"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_stored_prompts_account_id_accounts"
        ),
    )
    op.create_table(
        "stored_prompt_versions",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("prompt", json, nullable=False),
        sa.Column("note", sa.String(64)),
        sa.Column("created_by", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "name", "number", name="pk_stored_prompt_versions"),
        sa.ForeignKeyConstraint(
            ["account_id", "name"],
            ["stored_prompts.account_id", "stored_prompts.name"],
            name="fk_stored_prompt_versions_account_id_stored_prompts",
        ),
    )
    op.create_table(
        "stored_prompt_labels",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("previous", sa.Integer()),
        sa.Column("moved_by", sa.String(64), nullable=False),
        sa.Column("moved_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "name", "label", name="pk_stored_prompt_labels"),
        sa.ForeignKeyConstraint(
            ["account_id", "name"],
            ["stored_prompts.account_id", "stored_prompts.name"],
            name="fk_stored_prompt_labels_account_id_stored_prompts",
        ),
    )
    op.add_column("submissions", sa.Column("prompt", sa.String(129)))
    op.add_column("submissions", sa.Column("prompt_version", sa.Integer()))
