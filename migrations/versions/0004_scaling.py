"""Adds what scaling knows of a deployment, and a quick way to the turns that are being written."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for name in ("gpu_count", "wanted_replicas", "applied_replicas"):
        op.add_column(
            "deployments", sa.Column(name, sa.Integer(), nullable=False, server_default="1")
        )
    op.add_column("deployments", sa.Column("capacity", sa.Integer()))
    op.add_column("deployments", sa.Column("start_s", sa.Double()))
    op.add_column("deployments", sa.Column("scaled_at", sa.DateTime(timezone=True)))
    op.add_column("deployments", sa.Column("last_traffic_at", sa.DateTime(timezone=True)))
    op.add_column("deployments", sa.Column("waits_for", sa.Text()))
    op.add_column("deployments", sa.Column("region", sa.String(length=64)))
    op.create_index("ix_conversations_turn_until", "conversations", ["turn_until"])
