"""Engines: the model servers that several deployments share.

Nothing else changes: ``deployments.server`` names the model server as before, and the version before finds it there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.create_table(
        "engines",
        sa.Column("id", sa.String(length=160), nullable=False),
        sa.Column("digest", sa.String(length=64)),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_engines"),
        sa.UniqueConstraint("digest", name="uq_engines_digest"),
    )
    op.create_index("ix_deployments_server", "deployments", ["server"])
