"""Adds on which machines of a cluster an artifact was served lately, whose caches may hold it.

The version before writes and reads none: its pods prefer no machine.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0086"
down_revision = "0085"


def upgrade() -> None:
    op.create_table(
        "artifact_machines",
        sa.Column("artifact_key", sa.String(64), nullable=False),
        sa.Column("machine", sa.String(253), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("artifact_key", "machine", name=op.f("pk_artifact_machines")),
    )
    op.create_index("ix_artifact_machines_at", "artifact_machines", ["at"])
