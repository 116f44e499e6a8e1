"""Gateways say which app wants how many places, and versions beside have places of their own. The version before says neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn

revision = "0036"
down_revision = "0033"


def upgrade() -> None:
    with op.batch_alter_table("gateway_places") as places:
        places.alter_column("submission_id", existing_type=sa.String(128), type_=sa.String(160))
        places.add_column(sa.Column("apps", JsonColumn))
