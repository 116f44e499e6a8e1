"""Adds the rival to flags, which says that a flag is of a duel, and an index of compared regenerations whose outcome is open.

The version before flags ratings alone and counts duels that a burst holds; it lists flags of duels as if they were of ratings, and lets one
count by its battle's id, which this version honours. It notes outcomes of regenerations when an admin looks at them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0090"
down_revision = "0088"


def upgrade() -> None:
    op.add_column("vote_flags", sa.Column("rival_id", sa.String(128)))
    for name, column in (("allowed", "allowed_at"), ("duels", "rival_id")):
        condition = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"ix_vote_flags_{name}",
            "vote_flags",
            ["competition"],
            postgresql_where=condition,
            sqlite_where=condition,
        )
    undecided = sa.text("went_on IS NULL")
    op.create_index(
        "ix_regenerations_undecided",
        "regenerations",
        ["at"],
        postgresql_where=undecided,
        sqlite_where=undecided,
    )
