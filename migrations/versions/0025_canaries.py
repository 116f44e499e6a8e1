"""Canaries: what share a redeploy takes at first, what each version has shown meanwhile, and what to go back to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("share", sa.Double(), nullable=False, server_default="1.0"))
    op.add_column("rollouts", sa.Column("canary_s", sa.Double()))
    op.add_column("rollouts", sa.Column("slow_from", sa.Integer()))
    op.add_column("rollouts", sa.Column("replaced", JSON))
    op.add_column("rollouts", sa.Column("restores", JSON))
    op.create_table(
        "canary_counts",
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("is_new", sa.Boolean(), nullable=False),
        sa.Column("replies", sa.Integer(), nullable=False),
        sa.Column("faults", sa.Integer(), nullable=False),
        sa.Column("waits", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name=op.f("fk_canary_counts_submission_id_submissions"),
        ),
        sa.PrimaryKeyConstraint("submission_id", "run", "is_new", name=op.f("pk_canary_counts")),
    )
