"""Adds a table of how few votes decide between neighbours on a board. The version before does not read it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0098"
down_revision = "0097"


def upgrade() -> None:
    op.create_table(
        "board_pairs",
        sa.Column("competition", sa.String(64), nullable=False),
        sa.Column("ranking", sa.String(32), nullable=False),
        sa.Column("pairs", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("competition", name=op.f("pk_board_pairs")),
    )
