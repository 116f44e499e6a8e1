"""Adds regenerations that are compared: new replies that were drawn at random from two submissions.

The version before ignores the rule and the table; it answers 422 to a request that allows the comparison, and its gateways compare none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from guanaco_server.database.types import UtcDateTime

revision = "0087"
down_revision = "0086"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "regenerations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("competition", sa.String(64), nullable=False),
        sa.Column("own", sa.String(128), nullable=False),
        sa.Column("rival", sa.String(128), nullable=False),
        sa.Column("is_rivals", sa.Boolean(), nullable=False),
        sa.Column("went_on", sa.Boolean()),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("decision", JSON),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("fk_regenerations_conversation_id_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regenerations")),
    )
    op.create_index("ix_regenerations_competition_at", "regenerations", ["competition", "at"])
    op.create_index(op.f("ix_regenerations_conversation_id"), "regenerations", ["conversation_id"])
