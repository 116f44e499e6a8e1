"""Adds a column that says whether a LoRA adapter was promoted, and so is merged into its base. The version before goes on serving it as it finds it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"


def upgrade() -> None:
    op.add_column(
        "submissions",
        sa.Column("is_promoted", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
