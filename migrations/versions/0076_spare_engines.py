"""Adds what a model server without users holds, and for which run a server was taken over.

The version before makes none and notes nothing; one that leads beside this version stops those without users.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn

revision = "0076"
down_revision = "0074"


def upgrade() -> None:
    op.add_column("engines", sa.Column("taken_by", sa.String(160)))
    op.add_column("engines", sa.Column("spare", JsonColumn))
