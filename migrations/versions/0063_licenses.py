"""The licence that a submission's model card names, for lists that are filtered by it.

The version before leaves it empty, and so do submissions that were checked before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0063"
down_revision = "0062"


def upgrade() -> None:
    op.add_column("submissions", sa.Column("license", sa.String(100)))
