"""Conversations of which a random share is asked for a rating.

The version before draws nothing: a conversation whose reply it writes is not among them, whatever the draw would have been. Where it deletes a
conversation, what was drawn goes too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import JsonColumn, UtcDateTime

revision = "0072"
down_revision = "0071"


def upgrade() -> None:
    op.create_table(
        "asks",
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("competition", sa.String(length=64), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("user_key", sa.String(length=161), nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("until", UtcDateTime, nullable=False),
        sa.Column("chance", sa.Double(), nullable=False),
        sa.Column("is_asked", sa.Boolean(), nullable=False),
        sa.Column("signals", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_asks_conversation_id_conversations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_asks"),
        sa.UniqueConstraint(
            "user_key",
            "competition",
            "submission_id",
            name="uq_asks_user_key_competition_submission_id",
        ),
    )
    op.create_index(
        "ix_asks_competition_at_conversation_id", "asks", ["competition", "at", "conversation_id"]
    )
