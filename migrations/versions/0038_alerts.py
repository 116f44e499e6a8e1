"""Adds tables of what was served in periods of five minutes, and of alerts and their messages. The version before neither reads nor writes them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from guanaco_server.database.types import UtcDateTime

revision = "0038"
down_revision = "0037"

GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FIRING = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "service_counts",
        sa.Column("measure", sa.String(32), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("measure", "at", name="pk_service_counts"),
    )
    op.create_table(
        "alerts",
        sa.Column("id", GROWING_ID, nullable=False),
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("sentence", sa.String(), nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.Column("calm_since", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index(
        "ix_alerts_firing",
        "alerts",
        ["name"],
        unique=True,
        postgresql_where=FIRING,
        sqlite_where=FIRING,
    )
    op.create_table(
        "alert_messages",
        sa.Column("id", GROWING_ID, nullable=False),
        sa.Column("alert_id", GROWING_ID),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("alert", sa.String(32)),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("next_attempt_at", UtcDateTime(), nullable=False),
        sa.Column("last_attempt_at", UtcDateTime()),
        sa.Column("last_result", sa.String(200)),
        sa.ForeignKeyConstraint(
            ["alert_id"], ["alerts.id"], name="fk_alert_messages_alert_id_alerts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_alert_messages"),
    )
    op.create_index(
        "ix_alert_messages_state_next_attempt_at",
        "alert_messages",
        ["state", "next_attempt_at"],
    )
