"""Sweeps: variants of one repo that were entered together.

The version before reads none of it: to it the variants are submissions like all others, each worked on by itself.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("developer", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=193), nullable=False),
        sa.Column("repo", sa.String(length=193), nullable=False),
        sa.Column("revision", sa.String(length=128)),
        sa.Column("idempotency_key", sa.String(length=128)),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_sweeps_account_id_accounts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint(
            "account_id", "idempotency_key", name="uq_sweeps_account_id_idempotency_key"
        ),
    )
    op.create_index("ix_sweeps_account_id_created_at", "sweeps", ["account_id", "created_at"])
    op.add_column("submissions", sa.Column("sweep", sa.String(length=128)))
    op.add_column("submissions", sa.Column("sweep_place", sa.Integer()))
    op.create_index("ix_submissions_sweep", "submissions", ["sweep"])
