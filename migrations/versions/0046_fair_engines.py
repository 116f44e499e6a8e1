"""Adds which of an engine's submissions want its places, and what each has used of its GPUs.

The version before reads and writes neither: it counts the places of each submission by itself, and takes equal parts of a cost.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.add_column("gateway_places", sa.Column("submissions", JsonColumn))
    op.add_column("gpu_intervals", sa.Column("engine", sa.String(length=160)))
    op.add_column("gpu_intervals", sa.Column("tokens", sa.Double()))
    op.add_column("gpu_intervals", sa.Column("busy_s", sa.Double()))
