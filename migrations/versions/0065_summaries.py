"""The summary that was shown with a user's message, what a conversation carries from the last one, and up to where it is forgotten.

The version before writes messages without a summary, leaves them out of its prompts, and remembers what was forgotten.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0065"
down_revision = "0064"


def upgrade() -> None:
    json = sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True), "postgresql"
    )
    op.add_column("messages", sa.Column("summary", json))
    op.add_column("conversations", sa.Column("carried", json))
    op.add_column(
        "conversations",
        sa.Column("forgotten_until", sa.Integer(), nullable=False, server_default="0"),
    )
