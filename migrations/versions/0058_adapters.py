"""Adapters that are served without being merged.

The version before knows nothing of ``base_key``: its gateway asks for an adapter by a name that the base's server refuses, so
``lora_serving`` is set to ``adapter`` only when no process of that version runs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"


def upgrade() -> None:
    op.add_column("deployments", sa.Column("base_key", sa.String(length=64)))
