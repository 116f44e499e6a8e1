"""Adds why the platform began a redeploy by itself.

The version before begins none, and runs one that it finds as a developer's: an adapter that was refused is tried once more before it is merged, and a
base that moves gets a server of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0092"
down_revision = "0091"


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("because", sa.Text()))
