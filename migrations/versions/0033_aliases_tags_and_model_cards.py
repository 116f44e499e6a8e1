"""Aliases, tags and model cards of submissions, and keys that may choose a model. The version before shows none of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn, UtcDateTime

revision = "0033"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("submissions", sa.Column("tags", JsonColumn))
    op.add_column("submissions", sa.Column("card", JsonColumn))
    op.add_column(
        "api_keys",
        sa.Column("may_choose_models", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "submission_aliases",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("repo", sa.String(193), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("set_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_submission_aliases_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name=op.f("fk_submission_aliases_submission_id_submissions"),
        ),
        sa.PrimaryKeyConstraint("account_id", "repo", "name", name=op.f("pk_submission_aliases")),
    )
    op.create_index(
        op.f("ix_submission_aliases_submission_id"), "submission_aliases", ["submission_id"]
    )
