"""One history of scores: the pages' own goes, the leaderboard's keeps the metrics too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.drop_table("web_scores")
    with op.batch_alter_table("score_points") as points:
        for name in ("score", "low", "high"):
            points.alter_column(name, existing_type=sa.Double(), nullable=True)
        points.add_column(sa.Column("figures", sa.String(), nullable=False, server_default="{}"))
