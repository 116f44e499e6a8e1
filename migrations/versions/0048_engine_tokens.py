"""The token that opens a model server's control routes.

A server that an earlier version started has none, and is never given another model.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0046"


def upgrade() -> None:
    op.add_column("engines", sa.Column("token", sa.String(length=64)))
