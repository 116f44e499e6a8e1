"""The type of a submission's weights, its quantization and its adapter's base model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column(
        "submissions",
        sa.Column("dtype", sa.String(length=16), nullable=False, server_default="auto"),
    )
    op.add_column("submissions", sa.Column("quantization", sa.String(length=16)))
    op.add_column("submissions", sa.Column("base_repo", sa.String(length=193)))
    op.add_column("submissions", sa.Column("base_commit", sa.String(length=64)))
    op.add_column("deployments", sa.Column("quantization", sa.String(length=16)))
