"""Adds a table of the erasure ledger's entries that were carried out. The version before erases without noting it, and is repeated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0042"
down_revision = "0039"


def upgrade() -> None:
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
    )
