"""In which queue of its competition a deployment's model server waits for its place; the version before neither reads nor writes it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column("deployments", sa.Column("queue", sa.String(63)))
