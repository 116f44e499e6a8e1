"""Redeploys beside the version that serves: a second deployment of a submission, and how far each redeploy is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from guanaco_server.database.types import UtcDateTime

revision = "0024"
down_revision = "0023"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("deployments") as deployments:
        # A version beside has a key of its own, which is no submission's id.
        deployments.drop_constraint("fk_deployments_submission_id_submissions", type_="foreignkey")
        deployments.alter_column(
            "submission_id", existing_type=sa.String(128), type_=sa.String(160)
        )
        deployments.add_column(sa.Column("server", sa.String(160)))
        deployments.add_column(sa.Column("share", sa.Double()))
        deployments.add_column(sa.Column("takes_since", UtcDateTime()))
    op.add_column("gpu_intervals", sa.Column("server", sa.String(160)))
    op.create_table(
        "rollouts",
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.Column("shifting_at", UtcDateTime()),
        sa.Column("draining_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("failure", JSON),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name=op.f("fk_rollouts_submission_id_submissions"),
        ),
        sa.PrimaryKeyConstraint("submission_id", "run", name=op.f("pk_rollouts")),
    )
    op.create_index("ix_rollouts_phase", "rollouts", ["phase"])
