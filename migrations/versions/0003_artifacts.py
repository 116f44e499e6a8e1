"""Adds a table of artifacts, and of when each was last needed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("needed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("doomed_at", sa.DateTime(timezone=True)),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_artifacts"),
    )
