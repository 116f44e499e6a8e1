"""Webhooks, their progress and their outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("account_id", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("feedback_every", sa.Integer()),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("old_secret", sa.String(length=64)),
        sa.Column("old_secret_until", MOMENT),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_webhooks_account_id_accounts"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
        sa.UniqueConstraint("account_id", name="uq_webhooks_account_id"),
    )
    op.create_table(
        "webhook_progress",
        sa.Column("webhook_id", sa.String(length=32), nullable=False),
        sa.Column("submission_id", sa.String(length=128), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("feedback_count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name="fk_webhook_progress_webhook_id_webhooks"
        ),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
            name="fk_webhook_progress_submission_id_submissions",
        ),
        sa.PrimaryKeyConstraint("webhook_id", "submission_id", name="pk_webhook_progress"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("webhook_id", sa.String(length=32), nullable=False),
        sa.Column("submission_id", sa.String(length=128)),
        sa.Column("event", sa.String(length=16), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("next_attempt_at", MOMENT, nullable=False),
        sa.Column("last_attempt_at", MOMENT),
        sa.Column("last_result", sa.String(length=200)),
        sa.Column("claim", sa.String(length=32)),
        sa.Column("claimed_until", MOMENT),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name="fk_webhook_deliveries_webhook_id_webhooks"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
    )
    op.create_index(
        "ix_webhook_deliveries_state_next_attempt_at",
        "webhook_deliveries",
        ["state", "next_attempt_at"],
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_created_at",
        "webhook_deliveries",
        ["webhook_id", "created_at"],
    )
