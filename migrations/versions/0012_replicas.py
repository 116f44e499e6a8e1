"""The endpoints of all replicas of a deployment, in place of one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """``endpoint`` stays for the version before, which still reads and writes it."""
    op.add_column(
        "deployments", sa.Column("endpoints", JSON, nullable=False, server_default=sa.text("'[]'"))
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    array = sa.func.jsonb_build_array if is_postgresql else sa.func.json_array
    deployments = sa.table("deployments", sa.column("endpoint"), sa.column("endpoints", JSON))
    op.execute(
        sa.update(deployments)
        .where(deployments.c.endpoint.is_not(None))
        .values(endpoints=array(deployments.c.endpoint))
    )
