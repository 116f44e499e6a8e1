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
        sa.Column(
            "submission_id", sa.String(128), sa.ForeignKey("submissions.id"), primary_key=True
        ),
        sa.Column("sealed", sa.String(2_048), nullable=False),
        sa.Column("kept_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "quotas",
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.id"), primary_key=True),
        sa.Column("per_hour", sa.BigInteger()),
        sa.Column("live", sa.BigInteger()),
        sa.Column("in_progress", sa.BigInteger()),
        sa.Column("artifact_bytes", sa.BigInteger()),
    )
    op.create_table(
        "run_starts",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("account_id", sa.String(32), sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_run_starts_account_id_at", "run_starts", ["account_id", "at"])
