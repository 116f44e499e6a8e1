"""Adds why an adapter is merged into its base, for the submission and its report.

The version before does not write it: an adapter that it serializes says nothing, or what an earlier run said.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0091"
down_revision = "0090"


def upgrade() -> None:
    op.add_column("submissions", sa.Column("merged_because", sa.Text()))
