"""The places at model servers that each gateway process holds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0023"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "gateway_places",
        sa.Column("submission_id", sa.String(128), nullable=False),
        sa.Column("gateway", sa.String(32), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("held_until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("submission_id", "gateway", name=op.f("pk_gateway_places")),
    )
