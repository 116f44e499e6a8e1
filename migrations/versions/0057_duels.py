"""Battles: two replies to one message, and the votes on them.

The version before reads none of it. Where it deletes a conversation, the battles of that conversation go too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0057"
down_revision = "0056"


def upgrade() -> None:
    op.create_table(
        "battles",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("competition", sa.String(length=64), nullable=False),
        sa.Column("a_submission", sa.String(length=128), nullable=False),
        sa.Column("b_submission", sa.String(length=128), nullable=False),
        sa.Column("a_content", sa.String(), nullable=False),
        sa.Column("b_content", sa.String(), nullable=False),
        sa.Column("a_finish_reason", sa.String(length=32), nullable=False),
        sa.Column("b_finish_reason", sa.String(length=32), nullable=False),
        sa.Column("own_side", sa.String(length=1), nullable=False),
        sa.Column("continues_from", sa.String(length=1), nullable=False),
        sa.Column("outcome", sa.String(length=16)),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("voted_at", UtcDateTime),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_battles_conversation_id_conversations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_battles"),
    )
    op.create_index("ix_battles_conversation_id", "battles", ["conversation_id"])
    op.create_index("ix_battles_message_id", "battles", ["message_id"])
    for column in ("a_submission", "b_submission", "competition"):
        op.create_index(f"ix_battles_{column}_voted_at", "battles", [column, "voted_at"])
    op.create_table(
        "duels",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("battle_id", sa.String(length=64), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("continues_from", sa.String(length=1), nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("given_by", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["battle_id"], ["battles.id"], name="fk_duels_battle_id_battles", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name="pk_duels"),
        sa.UniqueConstraint("battle_id", "revision", name="uq_duels_battle_id_revision"),
    )
