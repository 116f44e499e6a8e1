"""A submission that was deleted is in no list any more; the version before still shows it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0030"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("submissions", sa.Column("deleted_at", UtcDateTime()))
