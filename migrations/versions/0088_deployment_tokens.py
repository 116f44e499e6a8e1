"""Adds the tokens that each deployment has used, for the sleep policy `worth`.

The version before counts none: what its gateways serve makes a rating look cheaper until they are replaced.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0088"
down_revision = "0087"


def upgrade() -> None:
    op.add_column("deployments", sa.Column("used_tokens", sa.Double()))
