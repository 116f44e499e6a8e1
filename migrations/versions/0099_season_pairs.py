"""Adds to seasons how few votes decide between neighbours. The version before neither writes nor reads it; what it freezes is weighed later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0099"
down_revision = "0098"


def upgrade() -> None:
    op.add_column("seasons", sa.Column("pairs", sa.Text(), nullable=True))
