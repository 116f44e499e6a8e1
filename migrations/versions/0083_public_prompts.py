"""Adds whether a submission's prompt is shown on its public page. The version before shows none, and leaves the column as it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0083"
down_revision = "0082"


def upgrade() -> None:
    op.add_column(
        "submissions",
        sa.Column("show_prompt", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
