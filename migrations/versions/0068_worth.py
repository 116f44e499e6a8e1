"""Two columns of a deployment for the sleep policy `worth`: how long its last waking took, and for whom it makes room.

The version before leaves both empty, and goes on sending conversations to a deployment that makes room.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0068"
down_revision = "0065"


def upgrade() -> None:
    op.add_column("deployments", sa.Column("wake_s", sa.Double()))
    op.add_column("deployments", sa.Column("yields_to", sa.String(160)))
