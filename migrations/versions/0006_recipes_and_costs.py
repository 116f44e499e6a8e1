"""On which GPUs a submission is served, and when which of them were held."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("submissions", sa.Column("recipe_override", JSON))
    op.add_column("deployments", sa.Column("recipe", JSON))
    op.add_column(
        "deployments",
        sa.Column("developer", sa.String(length=64), nullable=False, server_default=""),
    )
    op.create_table(
        "gpu_intervals",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("developer", sa.String(length=64), nullable=False),
        sa.Column("gpu_type", sa.String(length=32), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("gpu_hour_price", sa.Double(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name="fk_gpu_intervals_submission_id_submissions",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_intervals"),
    )
    op.create_index("ix_gpu_intervals_submission_id", "gpu_intervals", ["submission_id"])
    op.create_index("ix_gpu_intervals_ended_at", "gpu_intervals", ["ended_at"])
