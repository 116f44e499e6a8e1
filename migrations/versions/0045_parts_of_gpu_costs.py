"""The part of an engine's cost that each of its submissions pays. The version before takes each for the whole."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.add_column("gpu_intervals", sa.Column("part", sa.Double()))
