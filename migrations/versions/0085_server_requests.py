"""Adds the model servers that were asked for lately, after which some are started ahead of demand.

The version before writes none, so what it is asked for starts nothing ahead. A spare that is being started is for it a spare like any; if it takes one
over too early, it starts a server under that name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn, UtcDateTime

revision = "0085"
down_revision = "0083"


def upgrade() -> None:
    op.create_table(
        "server_requests",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            nullable=False,
        ),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("server", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_requests")),
    )
    op.create_index("ix_server_requests_at", "server_requests", ["at"])
