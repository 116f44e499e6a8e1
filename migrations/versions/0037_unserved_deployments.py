"""Store why no model server answers for a deployment, and since when; the version before neither reads nor writes it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    op.add_column("deployments", sa.Column("trouble", sa.String(32)))
    op.add_column("deployments", sa.Column("problem", sa.Text()))
    op.add_column("deployments", sa.Column("unserved_since", UtcDateTime()))
