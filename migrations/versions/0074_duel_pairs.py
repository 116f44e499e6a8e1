"""Adds the duels that count by pair of submissions, and how the rival of a battle was chosen.

The version before ranks without writing the pairs: while it ranks, the next duels are planned by the pairs that were last written.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0074"
down_revision = "0072"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "duel_pairs",
        sa.Column("competition", sa.String(length=64), nullable=False),
        sa.Column("first", sa.String(length=128), nullable=False),
        sa.Column("second", sa.String(length=128), nullable=False),
        sa.Column("won", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("tied", sa.Integer(), nullable=False),
        sa.Column("both_bad", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("competition", "first", "second", name="pk_duel_pairs"),
    )
    for column in ("first", "second"):
        op.create_index(f"ix_duel_pairs_{column}", "duel_pairs", [column])
    op.add_column("battles", sa.Column("decision", JSON))
