"""Snapshots of assignments are dropped by their age."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_index("ix_assignment_snapshots_created_at", "assignment_snapshots", ["created_at"])
