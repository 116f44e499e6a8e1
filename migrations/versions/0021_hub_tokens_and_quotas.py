"""Developers' own Hub tokens, encrypted, and quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "hub_tokens",
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("sealed", sa.String(2_048), nullable=False),
        sa.Column("kept_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name=op.f("fk_hub_tokens_submission_id_submissions"),
        ),
        sa.PrimaryKeyConstraint("submission_id", name=op.f("pk_hub_tokens")),
    )
    op.create_table(
        "quotas",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("per_hour", sa.BigInteger()),
        sa.Column("live", sa.BigInteger()),
        sa.Column("in_progress", sa.BigInteger()),
        sa.Column("artifact_bytes", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_quotas_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_quotas")),
    )
    op.create_table(
        "run_starts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_run_starts_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_starts")),
    )
    op.create_index("ix_run_starts_account_id_at", "run_starts", ["account_id", "at"])
