"""A stage that waits for room says so, and holds no place of the pipeline meanwhile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("stage_runs", sa.Column("waits_for", sa.Text()))
