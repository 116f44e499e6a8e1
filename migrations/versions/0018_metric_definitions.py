"""Each measured conversation has the version of the definitions that it was measured by.

The version before does not write the new columns: what it inserts gets version 1, which is right. How its updates
are noticed is in leaderboard/counting/queries.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column(
        "score_conversations",
        sa.Column("definition", sa.Integer(), nullable=False, server_default="1"),
    )
    op.create_index("ix_score_conversations_definition", "score_conversations", ["definition"])
    op.add_column(
        "score_books",
        sa.Column("definitions_at", sa.Integer(), nullable=False, server_default="0"),
    )
    op.execute("UPDATE score_books SET definitions_at = version")
