"""A/B experiments, and how a conversation was assigned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "assignment_snapshots",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("snapshot", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_assignment_snapshots"),
    )
    op.create_table(
        "experiments",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("rules", JSON, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("stopped_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_experiments"),
    )
    op.create_table(
        "experiment_exposures",
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("experiment", sa.String(length=64), nullable=False),
        sa.Column("variant", sa.String(length=64), nullable=False),
        sa.Column("unit", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_experiment_exposures_conversation_id_conversations",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["experiment"],
            ["experiments.name"],
            name="fk_experiment_exposures_experiment_experiments",
        ),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_experiment_exposures"),
    )
    op.create_index(
        "ix_experiment_exposures_experiment_variant",
        "experiment_exposures",
        ["experiment", "variant"],
    )
    op.add_column("conversations", sa.Column("experiment", sa.String(length=64)))
    op.add_column("conversations", sa.Column("variant", sa.String(length=64)))
    op.add_column("conversations", sa.Column("decision", JSON))
    op.create_index("ix_conversations_created_at", "conversations", ["created_at"])
    op.create_index(
        "ix_conversations_account_id_user_id_competition",
        "conversations",
        ["account_id", "user_id", "competition"],
    )
