"""Summaries: those shown with a user's message, the one that waits to be shown, what is carried from the last conversation, and up to where it is forgotten.

The version before writes messages without a summary, leaves them out of its prompts, and remembers what was forgotten. While it runs
beside this one, what it erases or edits may still be in a summary or in what later conversations carry.
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
    op.add_column("conversations", sa.Column("written", json))
    for name in ("forgotten_until", "change_count"):
        counter = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        op.add_column("conversations", counter)
