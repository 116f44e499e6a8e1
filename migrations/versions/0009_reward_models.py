"""Reward models: a submission's kind, the one that it names, and the score of the reply that was chosen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column(
        "submissions",
        sa.Column("kind", sa.String(length=16), nullable=False, server_default="chat"),
    )
    op.add_column("submissions", sa.Column("reward", sa.String(length=128)))
    op.add_column("submissions", sa.Column("reward_formatter", JSON))
    op.create_index("ix_submissions_reward", "submissions", ["reward"])
    op.add_column("messages", sa.Column("reward_score", sa.Double()))
