"""Adds which words of users may be shown on a model's public page.

The version before records ratings and makes copies that may not be quoted, and a rating that it changes is no longer quoted.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0071"
down_revision = "0069"


def upgrade() -> None:
    op.add_column("feedback", sa.Column("quotable_as_of", UtcDateTime()))
    op.add_column(
        "feedback_copies",
        sa.Column("is_quotable", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index(
        "ix_feedback_copies_quotable",
        "feedback_copies",
        ["submission_id", "number"],
        postgresql_where=sa.text("is_quotable"),
        sqlite_where=sa.text("is_quotable"),
    )
